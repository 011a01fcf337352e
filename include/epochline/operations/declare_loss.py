"""Declare offsets lost that retention deleted before they were read, so that the pipeline continues after the gap."""

from __future__ import annotations

from collections.abc import Sequence

from epochline.coordinator.checks import is_read
from epochline.coordinator.mirroring import mirror
from epochline.errors import ActionRefusedError
from epochline.operations.action import ActionPreview, Afterwards, DirectAction, Parameters, Request, Subject, refused
from epochline.ports import Transaction
from epochline.protocol.clusters import moved_clusters
from epochline.protocol.offsets import Head, OffsetRange, PlannedRange
from epochline.protocol.planning import SourceView


class DeclareLoss(DirectAction[Parameters, SourceView]):
    """Write the lost offsets as a link of the chain without an epoch."""

    name = "declare-loss"
    help = (
        "Declare that offsets of PIPELINE which retention deleted before they were read are lost: each partition goes"
        " on at its log start, and the ledger keeps the gap. Refused where nothing is lost."
    )
    parameters = Parameters

    def look(self, subject: Subject, parameters: Parameters) -> SourceView:
        declared, source = subject.declaration()
        return source.look(declared.source)

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: SourceView) -> ActionPreview:
        declared, _ = subject.declaration()
        row = tx.epochs.pipeline(subject.name)
        unfinished = tx.epochs.unfinished(subject.name)
        if unfinished is not None:
            return refused(
                f"{unfinished} is {unfinished.state} and may hold what looks lost; finish or abort it first."
            )
        if row is None or moved_clusters(row.cluster_id, seen.cluster_id):
            return refused(f"{subject.name}: its connection leads to another Kafka cluster; nothing there was lost.")
        heads = [head for head in tx.chain.heads(subject.name, row.generation) if is_read(declared, head)]
        gaps = lost_ranges(heads, seen)
        if not gaps:
            return refused(f"{subject.name}: every head lies in its log; nothing is lost.")
        total = sum(len(one.range) for one in gaps)
        return ActionPreview(
            lines=(
                *(f"{one.tp}: offsets {one.range}, {len(one.range)} of them, are declared lost" for one in gaps),
                f"{total} offsets will never be read; {subject.name} goes on behind them. This cannot be undone.",
            ),
            before={"heads": {str(one.tp): one.range.start for one in gaps}},
            after={
                "heads": {str(one.tp): one.range.until for one in gaps},
                "lost": {str(one.tp): [one.range.start, one.range.until] for one in gaps},
            },
        )

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: SourceView, request: Request
    ) -> Afterwards:
        declared, source = subject.declaration()
        row = tx.epochs.lock_pipeline(subject.name)
        heads = [head for head in tx.chain.heads(subject.name, row.generation) if is_read(declared, head)]
        gaps = lost_ranges(heads, seen)
        for one in gaps:
            if not tx.chain.declare_lost(subject.name, row.generation, one):
                raise ActionRefusedError(f"{one} does not start at its head any more. Nothing was changed.")

        def show() -> Sequence[str]:
            mirror(subject.ledger, source, declared)
            return [f"{subject.name} goes on at {', '.join(f'{one.tp}: {one.range.until}' for one in gaps)}"]

        return show


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
