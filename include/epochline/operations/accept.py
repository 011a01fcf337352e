"""Accept what is not as epochs left it: state and targets, or a ledger that went back in time (INV-8)."""

from collections.abc import Sequence
from dataclasses import dataclass

from epochline.coordinator.abort import abort_in
from epochline.coordinator.discard import sweep
from epochline.coordinator.evidence import Evidence, collect_evidence, shown_by_group, unknown_to
from epochline.coordinator.mirror import mirror
from epochline.coordinator.observe import ConsumerGroup, cut_off
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import recorded_state
from epochline.declare.topic import KafkaTopic
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    Case,
    DirectAction,
    Parameters,
    Request,
    Subject,
    refused,
)
from epochline.ports import Accepted, Transaction
from epochline.protocol.data_loss import CutOff
from epochline.protocol.offsets import Head, OffsetRange, Reached, TopicPartition, places, reached_of, stored_heads
from epochline.protocol.planning import SourceView

_SHOWN = 10
"""A preview names this many partitions at most."""


class AcceptState(DirectAction[Parameters, None]):
    """Accept the state and the targets of PIPELINE as they are now, although they differ from what the last committed
    epoch left. Restores nothing.
    """

    name = "accept-state"
    parameters = Parameters

    def describe(self, case: Case[Parameters, None]) -> ActionPreview:
        tx, declared = case.tx, case.declared
        last = tx.states.last_committed(case.pipeline)
        if last is None:
            return refused(f"no epoch of {case.pipeline} was committed, so no state can be right; empty the tables.")
        standings = tx.states.standings(declared, read=True)
        unknown = [table for table, standing in standings.items() if standing.now is None]
        if unknown:
            return refused(f"no trigger counts what is written to {', '.join(unknown)}; run `epochline migrate` first.")
        lost = tx.targets.lost(declared)
        changed = any(standing.now != standing.left or standing.left_by != last for standing in standings.values())
        if not changed and not lost:
            return refused(
                f"state and targets of {case.pipeline} are what epoch {last} left; there is nothing to accept."
            )
        unfinished = case.unfinished
        if changed and unfinished is not None:
            return refused(f"{unfinished} is {unfinished.state} and was made from the state as it was; abort it first.")
        return ActionPreview(
            lines=[
                *(
                    f"{table}: taken for what epoch {last} left: {standing.now}"
                    + ("" if standing.left is None else f"; epoch {standing.left_by} left {standing.left}")
                    for table, standing in standings.items()
                ),
                *(f"{table} {why}; taken as it is for what epoch {last} left" for table, why in lost.items()),
            ],
            before={**recorded_state({table: standing.as_left() for table, standing in standings.items()}), **lost},
            after={**recorded_state(standings), **dict.fromkeys(lost)},
            epoch_id=last,
        )

    def change(self, case: Case[Parameters, None], request: Request) -> Afterwards:
        last = case.tx.states.last_committed(case.pipeline)
        if last is not None:
            case.tx.states.leave(case.declared, last)
            case.tx.targets.accept(case.declared, last)
        return lambda: [f"{case.pipeline} goes on with its state and its targets as they are"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The epochs that Kafka and the sinks show, and the logs as they are."""

    evidence: Evidence
    mirrored: Reached
    view: SourceView
    cut_off: Sequence[CutOff]


class AcceptLedger(DirectAction[Parameters, Shown]):
    """Accept the ledger of PIPELINE although it was restored from a backup and the newer one is lost. Epochs that
    topics and folders show stay there: their offsets are read again into the tables alone, so that nothing is shown
    twice and nothing is missing. Refused if the ledger knows every epoch that is shown.
    """

    name = "accept-ledger"
    parameters = Parameters

    def look(self, subject: Subject, parameters: Parameters) -> Shown:
        declared, source = subject.declaration()
        evidence = collect_evidence(subject.ledger, source, declared)
        view = source.look(declared.source)
        shown = [(accepted.shown_by, stored_heads(accepted.shown.reached or ())) for accepted in evidence]
        mirrored = ConsumerGroup.observe(source, declared, last=None).offsets
        return Shown(
            evidence=evidence,
            mirrored={
                partition.tp: position.offset
                for partition in view.partitions
                if (position := mirrored.get((partition.tp.topic, partition.tp.partition))) is not None
                and position.epoch_id is not None
            },
            view=view,
            cut_off=cut_off(source, shown, view),
        )

    def describe(self, case: Case[Parameters, Shown]) -> ActionPreview:
        declared, seen = case.declared, case.seen
        unknown = unknown_to(case.tx, case.pipeline, seen.evidence)
        if not unknown:
            return refused(
                f"the ledger knows every epoch that Kafka and the sinks of {case.pipeline} show; it did not go back."
            )
        reason = _obstacle(case.tx, case.pipeline, unknown)
        if reason is not None:
            return refused(reason)
        last_known = case.row.last_epoch_id if case.row else 0
        heads = case.heads
        last = max(last_known, *(accepted.shown.epoch_id for accepted in unknown))
        unfinished = case.unfinished
        lines = [f"the ledger's last epoch is {last_known}; the next one is {last + 1}"]
        if unfinished is not None:
            lines.append(f"{unfinished} is {unfinished.state.lower()}: it is aborted, and its offsets are read again")
        lines += [_lost(accepted, heads, seen) for accepted in unknown]
        lines += _cannot_be_had(declared, heads, seen.view)
        lines += [
            f"{cut}: the tables cannot have those records, and"
            f" `epochline adopt-topic {declared.name} {cut.tp.topic} --at truncation --reason …` goes on with"
            " what came in their place"
            for cut in seen.cut_off
        ]
        return ActionPreview(
            lines=lines,
            before={"last_epoch_id": last_known, "heads": {str(head.tp): head.next_offset for head in heads}},
            after={
                "last_epoch_id": last,
                "accepted": [
                    {
                        "shown_by": accepted.shown_by,
                        "epoch_id": accepted.shown.epoch_id,
                        "token": accepted.shown.token,
                        "reached": accepted.shown.reached or [],
                    }
                    for accepted in unknown
                ],
            },
        )

    def change(self, case: Case[Parameters, Shown], request: Request) -> Afterwards:
        tx, subject = case.tx, case.subject
        declared, source = subject.declaration()
        unknown = unknown_to(tx, subject.name, case.seen.evidence)
        unfinished = case.unfinished
        if unfinished is not None:
            epoch = tx.epochs.lock(subject.name, unfinished.epoch_id)
            abort_in(tx, epoch, f"accept-ledger by {request}", may_pause=False)
        for accepted in unknown:
            tx.receipts.accept(subject.name, accepted.shown_by, accepted.shown)
        tx.epochs.skip_ids(subject.name, max(accepted.shown.epoch_id for accepted in unknown))
        paused = tx.operators.standing(subject.name).paused
        if paused is not None and paused.by == "epochline":
            tx.operators.resume(subject.name)

        def show() -> Sequence[str]:
            sweep(subject.ledger, subject.name)
            mirror(subject.ledger, source, declared)
            left = "" if paused is None or paused.by == "epochline" else f"; it is still paused {paused}"
            return [f"{subject.name} goes on with this ledger{left}"]

        return show


def _lost(accepted: Accepted, heads: Sequence[Head], seen: Shown) -> str:
    """What of an unknown epoch is read again."""
    by_group = accepted.shown.reached is None
    behind = _between(heads, seen.mirrored if accepted.shown.reached is None else reached_of(accepted.shown.reached))
    named = ", ".join(f"{tp} {part}" for tp, part in sorted(behind.items())[:_SHOWN])
    more = f" and {len(behind) - _SHOWN} more" if len(behind) > _SHOWN else ""
    again = "read again into the tables" + ("" if by_group else " alone, and not shown again there")
    return (
        f"{accepted.shown_by} shows epoch {accepted.shown.epoch_id}, which this ledger does not know:"
        f" {sum(map(len, behind.values()))} offsets are {again}" + (f": {named}{more}" if named else "")
    )


def _obstacle(tx: Transaction, pipeline: str, unknown: Evidence) -> str | None:
    """Why it is unknown which offsets a sink shows beyond the ledger; None if it is known."""
    for accepted in unknown:
        if shown_by_group(pipeline, accepted):
            continue
        if accepted.shown.reached is None:
            return (
                f"{accepted.shown_by} shows epoch {accepted.shown.epoch_id} without its offsets, because an"
                " older version wrote it. Bring the newer ledger back, or begin under another pipeline name with a sink"
                " of its own."
            )
        reached = reached_of(accepted.shown.reached)
        for due in tx.receipts.due(pipeline):
            epoch = tx.epochs.find(pipeline, due.epoch_id)
            ranges = [] if epoch is None or due.sink != accepted.shown_by else tx.epochs.ranges(epoch)
            beyond = any(planned.range.until > reached.get(planned.tp, 0) for planned in ranges)
            # A sink takes a due epoch for shown only where it shows a later one.
            if beyond or (ranges and due.epoch_id >= accepted.shown.epoch_id):
                return (
                    f"{due} is committed and not shown yet, and {accepted.shown_by} shows epoch"
                    f" {accepted.shown.epoch_id}, which is no later one that holds all of it: this ledger has"
                    " gone on since it went back, so it is unknown what is shown of that epoch. Bring the newer ledger"
                    " back."
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
    logs = {partition.tp: partition.log_start for partition in view.partitions}
    gone = {head.tp: logs[head.tp] - head.next_offset for head in heads if logs.get(head.tp, 0) > head.next_offset}
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
        f"{sink.name} is at_least_once and has no markers: what it holds of the lost epochs is sent again"
        for sink in declared.post_commit_sinks
        if isinstance(sink, KafkaTopic) and sink.semantics == "at_least_once"
    ]
    return lines
