"""Declare offsets lost that Kafka no longer has, so that the pipeline continues after them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from epochline.coordinator.mirror import mirror
from epochline.errors import ActionRefusedError
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    DirectAction,
    Parameters,
    Request,
    Subject,
    nothing_else,
    refused,
)
from epochline.ports import Transaction
from epochline.protocol.offsets import Head, OffsetRange, PlannedRange, left_out, moved_clusters
from epochline.protocol.planning import SourceView, next_ranges


class DeclareLossParameters(Parameters):
    """Which loss."""

    holes: bool = Field(
        False,
        description="Declare the empty offsets in the next epoch's range lost, not those before the start of the log.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The logs, and the holes in what the next epoch would read, where they were asked for."""

    view: SourceView
    holes: Sequence[PlannedRange] = ()


class DeclareLoss(DirectAction[DeclareLossParameters, Found]):
    """Write the lost offsets as a link of the chain without an epoch, or as holes that an epoch reads past."""

    name = "declare-loss"
    help = (
        "Declare records of PIPELINE lost that retention deleted before they were read. Each partition continues at its"
        " log start, and the ledger keeps the gap. With --holes, declare offsets inside a log lost at which Kafka holds"
        " neither records nor transaction markers. Refused if nothing is lost."
    )
    parameters = DeclareLossParameters

    def look(self, subject: Subject, parameters: DeclareLossParameters) -> Found:
        declared, source = subject.declaration()
        view = source.look(declared.source)
        if not parameters.holes:
            return Found(view=view)
        with subject.ledger.transaction() as tx:
            row = tx.epochs.pipeline(subject.name)
            heads = (
                [one for one in tx.chain.heads(subject.name, row.generation) if declared.source.keeps(one.tp.topic)]
                if row
                else []
            )
        limit = declared.source.records_per_epoch
        inside = [one for one in heads if one.tp.topic not in view.invisible_allowed]
        ranges = next_ranges(inside, view.partitions, limit=limit)
        found = source.gaps(ranges) if ranges else {}
        return Found(
            view=view,
            holes=[
                replace(one, range=hole)
                for one in ranges
                if (one.tp.topic, one.tp.partition) in found
                for hole in found[one.tp.topic, one.tp.partition].holes
            ],
        )

    def describe(
        self, tx: Transaction, subject: Subject, parameters: DeclareLossParameters, seen: Found
    ) -> ActionPreview:
        declared, _ = subject.declaration()
        row = tx.epochs.pipeline(subject.name)
        unfinished = tx.epochs.unfinished(subject.name)
        if unfinished is not None:
            return refused(
                f"{unfinished} is {unfinished.state} and may hold what looks lost; finish or abort it first."
            )
        if row is None or moved_clusters(row.cluster_id, seen.view.cluster_id):
            return refused(f"{subject.name}: its connection leads to another Kafka cluster; nothing there was lost.")
        if parameters.holes:
            return _holes(tx, subject, seen)
        heads = [head for head in tx.chain.heads(subject.name, row.generation) if declared.source.keeps(head.tp.topic)]
        gaps = lost_ranges(heads, seen.view)
        if not gaps:
            return refused(f"{subject.name}: every head lies in its log; nothing is lost.")
        return ActionPreview(
            lines=declaring_loss(subject.name, {str(gap.tp): gap.range for gap in gaps}),
            before={"heads": {str(one.tp): one.range.start for one in gaps}},
            after={
                "heads": {str(one.tp): one.range.until for one in gaps},
                "lost": {str(one.tp): [one.range.start, one.range.until] for one in gaps},
            },
        )

    def change(
        self, tx: Transaction, subject: Subject, parameters: DeclareLossParameters, seen: Found, request: Request
    ) -> Afterwards:
        declared, source = subject.declaration()
        if parameters.holes:
            for one in seen.holes:
                tx.chain.declare_gap(subject.name, one.tp, one.range)
            return nothing_else(f"{subject.name} reads past {', '.join(map(str, seen.holes))}")
        row = tx.epochs.lock_pipeline(subject.name)
        heads = [head for head in tx.chain.heads(subject.name, row.generation) if declared.source.keeps(head.tp.topic)]
        gaps = lost_ranges(heads, seen.view)
        for one in gaps:
            if not tx.chain.declare_lost(subject.name, row.generation, one):
                raise ActionRefusedError(f"{one} does not start at its head any more. Nothing was changed.")

        def show() -> Sequence[str]:
            mirror(subject.ledger, source, declared)
            return [f"{subject.name} goes on at {', '.join(f'{one.tp}: {one.range.until}' for one in gaps)}"]

        return show


def declaring_loss(pipeline: str, lost: Mapping[str, OffsetRange]) -> Sequence[str]:
    """What a declared loss of these offsets means, for page and terminal."""
    total = sum(map(len, lost.values()))
    return (
        *(f"{partition}: offsets {gap}, {len(gap)} of them, are declared lost" for partition, gap in lost.items()),
        f"{total} offsets will never be read; {pipeline} goes on behind them. This cannot be undone.",
    )


def _holes(tx: Transaction, subject: Subject, seen: Found) -> ActionPreview:
    new = [one for one in seen.holes if left_out(one.range, tx.chain.declared_gaps(subject.name, one.tp))]
    if not new:
        return refused(f"{subject.name}: the log of the next epoch has no hole that is not declared lost.")
    total = sum(len(one.range) for one in new)
    return ActionPreview(
        lines=(
            *(
                f"{one.tp}: the log holds nothing at {one.range}, {len(one.range)} offsets are declared lost"
                for one in new
            ),
            f"{total} offsets give no record; {subject.name} reads past them. This cannot be undone.",
        ),
        before={},
        after={"holes": [[str(one.tp), one.range.start, one.range.until] for one in new]},
    )


def lost_ranges(heads: Sequence[Head], view: SourceView) -> list[PlannedRange]:
    """Offsets between head and log start, for each partition that has any."""
    views = {one.tp: one for one in view.partitions}
    return [
        PlannedRange(
            tp=head.tp,
            range=OffsetRange(start=head.next_offset, until=views[head.tp].log_start),
            leader_epoch=views[head.tp].leader_epoch,
        )
        for head in heads
        if head.tp in views and head.next_offset < views[head.tp].log_start
    ]
