"""Declare offsets lost that Kafka no longer has, so that the pipeline continues after them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from epochline.errors import ActionRefusedError
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    Case,
    DirectAction,
    Parameters,
    Request,
    Subject,
    mirrored,
    refused,
)
from epochline.protocol.offsets import OffsetRange, PlannedRange, left_out, moved_clusters
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
    """Declare records of PIPELINE lost that retention deleted before they were read. Each partition continues at its
    log start, and the ledger keeps the gap. With --holes, declare offsets inside a log lost at which Kafka holds
    neither records nor transaction markers. Refused if nothing is lost.
    """

    name = "declare-loss"
    parameters = DeclareLossParameters

    def look(self, subject: Subject, parameters: DeclareLossParameters) -> Found:
        declared, source = subject.declaration()
        view = source.look(declared.source)
        source.confirm(declared.consumer_group)
        if not parameters.holes:
            return Found(view=view)
        with subject.ledger.transaction() as tx:
            row = tx.epochs.pipeline(subject.name)
            heads = tx.chain.heads(subject.name, row.generation) if row else ()
        read = [head for head in heads if declared.source.keeps(head.tp.topic)]
        inside = [head for head in read if head.tp.topic not in view.invisible_allowed]
        ranges = next_ranges(inside, view.partitions, limit=declared.source.records_per_epoch)
        gaps = source.gaps(ranges) if ranges else {}
        holes = [
            replace(planned, range=hole)
            for planned in ranges
            if (gap := gaps.get((planned.tp.topic, planned.tp.partition))) is not None
            for hole in gap.holes
        ]
        return Found(view=view, holes=holes)

    def describe(self, case: Case[DeclareLossParameters, Found]) -> ActionPreview:
        row, unfinished = case.row, case.unfinished
        if unfinished is not None:
            return refused(
                f"{unfinished} is {unfinished.state} and may hold what looks lost; finish or abort it first."
            )
        if row is None or moved_clusters(row.cluster_id, case.seen.view.cluster_id):
            return refused(f"{case.pipeline}: its connection leads to another Kafka cluster; nothing there was lost.")
        if case.parameters.holes:
            return _holes(case)
        gaps = _lost(case)
        if not gaps:
            return refused(f"{case.pipeline}: every head lies in its log; nothing is lost.")
        return ActionPreview(
            lines=declaring_loss(case.pipeline, {str(gap.tp): gap.range for gap in gaps}),
            before={"heads": {str(gap.tp): gap.range.start for gap in gaps}},
            after={
                "heads": {str(gap.tp): gap.range.until for gap in gaps},
                "lost": {str(gap.tp): [gap.range.start, gap.range.until] for gap in gaps},
            },
        )

    def change(self, case: Case[DeclareLossParameters, Found], request: Request) -> Afterwards:
        pipeline, chain = case.pipeline, case.tx.chain
        if case.parameters.holes:
            for hole in case.seen.holes:
                chain.declare_gap(pipeline, hole.tp, hole.range)
            return lambda: [f"{pipeline} reads past {', '.join(map(str, case.seen.holes))}"]
        row, gaps = case.tx.epochs.lock_pipeline(pipeline), _lost(case)
        for gap in gaps:
            if not chain.declare_lost(pipeline, row.generation, gap):
                raise ActionRefusedError(f"{gap} does not start at its head any more. Nothing was changed.")

        return mirrored(case, f"{pipeline} goes on at {', '.join(f'{gap.tp}: {gap.range.until}' for gap in gaps)}")


def declaring_loss(pipeline: str, lost: Mapping[str, OffsetRange]) -> Sequence[str]:
    """What a declared loss of these offsets means, for page and terminal."""
    total = sum(map(len, lost.values()))
    return (
        *(f"{partition}: offsets {gap}, {len(gap)} of them, are declared lost" for partition, gap in lost.items()),
        f"{total} offsets will never be read; {pipeline} goes on behind them. This cannot be undone.",
    )


def _lost(case: Case[DeclareLossParameters, Found]) -> list[PlannedRange]:
    """Offsets between head and log start, for each partition that has any."""
    views = {partition.tp: partition for partition in case.seen.view.partitions}
    return [
        PlannedRange(
            tp=head.tp,
            range=OffsetRange(start=head.next_offset, until=views[head.tp].log_start),
            leader_epoch=views[head.tp].leader_epoch,
        )
        for head in case.heads
        if case.declared.source.keeps(head.tp.topic)
        and head.tp in views
        and head.next_offset < views[head.tp].log_start
    ]


def _holes(case: Case[DeclareLossParameters, Found]) -> ActionPreview:
    new = [
        hole for hole in case.seen.holes if left_out(hole.range, case.tx.chain.declared_gaps(case.pipeline, hole.tp))
    ]
    if not new:
        return refused(f"{case.pipeline}: the log of the next epoch has no hole that is not declared lost.")
    total = sum(len(hole.range) for hole in new)
    return ActionPreview(
        lines=(
            *(
                f"{hole.tp}: the log holds nothing at {hole.range}, {len(hole.range)} offsets are declared lost"
                for hole in new
            ),
            f"{total} offsets give no record; {case.pipeline} reads past them. This cannot be undone.",
        ),
        before={},
        after={"holes": [[str(hole.tp), hole.range.start, hole.range.until] for hole in new]},
    )
