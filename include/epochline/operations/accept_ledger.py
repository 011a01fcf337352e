"""Accept a ledger that went back in time, as from a backup, when the newer one is lost (INV-8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epochline.coordinator.discard import sweep
from epochline.coordinator.evidence import Evidence, collect_evidence, shown_by_group, unknown_to
from epochline.coordinator.group import ConsumerGroup
from epochline.coordinator.mirror import mirror
from epochline.coordinator.observe import cut_off
from epochline.declare.pipeline import Pipeline
from epochline.declare.topic import KafkaTopic
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    DirectAction,
    Parameters,
    Request,
    Subject,
    known,
    refused,
)
from epochline.ports import Accepted, PipelineRow, Transaction
from epochline.protocol.data_loss import CutOff
from epochline.protocol.mirror import MirroredOffset
from epochline.protocol.offsets import Head, OffsetRange, Reached, TopicPartition, places, reached_of, stored_heads
from epochline.protocol.planning import SourceView

_SHOWN = 10
"""A preview names this many partitions at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The epochs that Kafka and the sinks show, and the logs as they are."""

    evidence: Evidence
    mirrored: Reached
    view: SourceView
    cut_off: Sequence[CutOff]


class AcceptLedger(DirectAction[Parameters, Found]):
    """Continue with the restored ledger: tables read the lost epochs again, topics and folders keep them."""

    name = "accept-ledger"
    help = (
        "Go on with the ledger of PIPELINE although it went back in time, as from a backup, and the newer one is lost."
        " What topics and folders show is taken over: those offsets are read again into the tables alone, so that"
        " nothing is shown twice and nothing is missing. Refused where the ledger knows everything that is shown."
    )
    parameters = Parameters

    def look(self, subject: Subject, parameters: Parameters) -> Found:
        declared, source = subject.declaration()
        evidence = collect_evidence(subject.ledger, source, declared)
        view = source.look(declared.source)
        shown = [(one.shown_by, stored_heads(one.shown.reached or ())) for one in evidence]
        mirrored = ConsumerGroup.observe(source, declared, last=None).offsets
        return Found(
            evidence=evidence,
            mirrored={
                one.tp: mirrored[one.tp.topic, one.tp.partition].offset
                for one in view.partitions
                if _is_ours(mirrored.get((one.tp.topic, one.tp.partition)))
            },
            view=view,
            cut_off=cut_off(source, shown, view),
        )

    def describe(self, tx: Transaction, subject: Subject, parameters: Parameters, seen: Found) -> ActionPreview:
        declared, _ = subject.declaration()
        known(tx, subject.name)
        unknown = unknown_to(tx, subject.name, seen.evidence)
        if not unknown:
            return refused(
                f"the ledger knows every epoch that Kafka and the sinks of {subject.name} show; it did not go back."
            )
        reason = _obstacle(tx, subject.name, unknown)
        if reason is not None:
            return refused(reason)
        row = tx.epochs.pipeline(subject.name) or PipelineRow(generation=1, last_epoch_id=0, cluster_id=None)
        heads = tx.chain.heads(subject.name, row.generation)
        last = max(row.last_epoch_id, *(one.shown.epoch_id for one in unknown))
        unfinished = tx.epochs.unfinished(subject.name)
        lines = [f"the ledger's last epoch is {row.last_epoch_id}; the next one is {last + 1}"]
        if unfinished is not None:
            lines.append(f"{unfinished} is {unfinished.state.lower()}: it is aborted, and its offsets are read again")
        for one in unknown:
            lines += self._lost(one, heads, seen)
        lines += _cannot_be_had(declared, heads, seen.view)
        lines += [
            f"{one}: the tables cannot have those records, and"
            f" `epochline adopt-topic {declared.name} {one.tp.topic} --at truncation --reason …` goes on with"
            " what came in their place"
            for one in seen.cut_off
        ]
        return ActionPreview(
            lines=lines,
            before={"last_epoch_id": row.last_epoch_id, "heads": {str(one.tp): one.next_offset for one in heads}},
            after={
                "last_epoch_id": last,
                "accepted": [
                    {
                        "shown_by": one.shown_by,
                        "epoch_id": one.shown.epoch_id,
                        "token": one.shown.token,
                        "reached": one.shown.reached or [],
                    }
                    for one in unknown
                ],
            },
        )

    def _lost(self, one: Accepted, heads: Sequence[Head], seen: Found) -> list[str]:
        by_group = one.shown.reached is None
        behind = _between(heads, seen.mirrored if one.shown.reached is None else reached_of(one.shown.reached))
        offsets = sum(map(len, behind.values()))
        named = ", ".join(f"{tp} {part}" for tp, part in sorted(behind.items())[:_SHOWN])
        more = f" and {len(behind) - _SHOWN} more" if len(behind) > _SHOWN else ""
        again = "read again into the tables" + ("" if by_group else " alone, and not shown again there")
        return [
            f"{one.shown_by} shows epoch {one.shown.epoch_id}, which this ledger does not know: {offsets} offsets are"
            f" {again}" + (f": {named}{more}" if named else "")
        ]

    def change(
        self, tx: Transaction, subject: Subject, parameters: Parameters, seen: Found, request: Request
    ) -> Afterwards:
        declared, source = subject.declaration()
        unknown = unknown_to(tx, subject.name, seen.evidence)
        unfinished = tx.epochs.unfinished(subject.name)
        if unfinished is not None:
            epoch = tx.epochs.lock(subject.name, unfinished.epoch_id)
            attempt = tx.attempts.live(epoch)
            if attempt is not None:
                tx.attempts.fence(attempt, f"accept-ledger by {request.actor}")
            tx.epochs.mark_aborted(epoch, f"accept-ledger by {request}")
        for one in unknown:
            tx.receipts.accept(subject.name, one.shown_by, one.shown)
        tx.epochs.skip_ids(subject.name, max(one.shown.epoch_id for one in unknown))
        paused = tx.operators.standing(subject.name).paused
        if paused is not None and paused.by == "epochline":
            tx.operators.resume(subject.name)

        def show() -> Sequence[str]:
            sweep(subject.ledger, subject.name)
            mirror(subject.ledger, source, declared)
            left = "" if paused is None or paused.by == "epochline" else f"; it is still paused {paused}"
            return [f"{subject.name} goes on with this ledger{left}"]

        return show


def _is_ours(mirrored: MirroredOffset | None) -> bool:
    return mirrored is not None and mirrored.epoch_id is not None


def _obstacle(tx: Transaction, pipeline: str, unknown: Evidence) -> str | None:
    """Why it is unknown which offsets a sink shows beyond the ledger; None if it is known."""
    for one in unknown:
        if shown_by_group(pipeline, one):
            continue
        if one.shown.reached is None:
            return (
                f"{one.shown_by} shows epoch {one.shown.epoch_id} without its offsets, because an"
                " older version wrote it. Bring the newer ledger back, or begin under another pipeline name with a sink"
                " of its own."
            )
        reached = reached_of(one.shown.reached)
        for due in tx.receipts.due(pipeline):
            epoch = tx.epochs.find(pipeline, due.epoch_id)
            ranges = [] if epoch is None or due.sink != one.shown_by else tx.epochs.ranges(epoch)
            if any(it.range.until > reached.get(it.tp, 0) for it in ranges):
                return (
                    f"{due} is committed and not shown yet, and {one.shown_by} shows epoch {one.shown.epoch_id}, which"
                    " does not hold all of it: this ledger has gone on since it went back, so it is unknown what is"
                    " shown of that epoch. Bring the newer ledger back."
                )
    return None


def _between(heads: Sequence[Head], reached: Reached) -> dict[TopicPartition, OffsetRange]:
    """Offsets between the ledger's heads and the end of what is shown."""
    return {
        head.tp: OffsetRange(start=head.next_offset, until=reached[head.tp])
        for head in heads
        if head.next_offset < reached.get(head.tp, 0)
    }


def _cannot_be_had(declared: Pipeline, heads: Sequence[Head], view: SourceView) -> list[str]:
    """What is lost even if the ledger is accepted."""
    logs = {one.tp: one.log_start for one in view.partitions}
    gone = {one.tp: logs[one.tp] - one.next_offset for one in heads if logs.get(one.tp, 0) > one.next_offset}
    lines = []
    if gone:
        lines.append(
            f"Kafka no longer holds {sum(gone.values())} offsets that the tables lack, of"
            f" {places(gone)}: they are lost, and `epochline declare-loss {declared.name} --reason …` records that"
        )
    if (declared.states or declared.windows) and declared.post_commit_sinks:
        lines.append(
            "state is rebuilt from the offsets that are read again, in epochs with other ranges: what its sinks show of"
            " it already stays as it is"
        )
    lines += [
        f"{one.name} is at_least_once and has no markers: what it holds of the lost epochs is sent again"
        for one in declared.post_commit_sinks
        if isinstance(one, KafkaTopic) and one.semantics == "at_least_once"
    ]
    return lines
