"""Why a pipeline cannot go back to a savepoint, or a new one cannot begin from it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from epochline.coordinator.checks import check_changes
from epochline.coordinator.observe import ends_of_leader_epochs
from epochline.declare.names import QUARANTINE
from epochline.declare.pipeline import Pipeline
from epochline.ports import OffsetSource, PipelineRow, Transaction
from epochline.protocol.changes import Effect, changes
from epochline.protocol.data_loss import LeaderEpochEnds, cannot_be_read_again
from epochline.protocol.epoch import Epoch, EpochKind
from epochline.protocol.offsets import PlannedRange, Reached, TopicPartition, moved_clusters
from epochline.protocol.planning import SourceView
from epochline.protocol.savepoint import Savepoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """What Kafka holds now.

    ``ranges`` is what the epochs to undo read. ``ends`` says how far the logs of their former leaders go, and
    ``counted`` how many records a source that counts has in them.
    """

    view: SourceView
    ranges: Sequence[PlannedRange] = ()
    ends: LeaderEpochEnds = field(default_factory=dict)
    counted: Mapping[PlannedRange, int] = field(default_factory=dict)


def logs_of(source: OffsetSource, view: SourceView, ranges: Sequence[PlannedRange]) -> Logs:
    """Ask the source what it still has of ranges that are to be read again. Only a source that counts is counted."""
    return Logs(
        view=view,
        ranges=ranges,
        ends=ends_of_leader_epochs(source, ranges, view),
        counted={planned: records for planned in ranges for records in source.counted([planned]).values()},
    )


def ranges_read(tx: Transaction, pipeline: str, epochs: Sequence[int]) -> list[PlannedRange]:
    """What these epochs read. The records of a requeue come from the quarantine, which gets them back."""
    return [planned for epoch_id in epochs for planned in tx.epochs.ranges(tx.epochs.lock(pipeline, epoch_id))]


def cut_off_since(tx: Transaction, epoch: Epoch) -> str | None:
    """Which range of an epoch a later generation knows to be cut off; None if none is."""
    for planned in tx.epochs.ranges(epoch):
        cut = tx.chain.cut_since(epoch.pipeline, epoch.generation, planned.tp)
        if cut is not None and cut < planned.range.until:
            return f"{planned} is of a log that was cut off at offset {cut} when its topic was adopted"
    return None


def with_rows(tx: Transaction, pipeline: str, epochs: Sequence[int]) -> list[int]:
    """The epochs that wrote to targets. A restore only removes rows."""
    return [epoch_id for epoch_id in epochs if tx.epochs.lock(pipeline, epoch_id).kind is not EpochKind.RESTORE]


def origins(tx: Transaction, found: Savepoint, row: PipelineRow) -> dict[TopicPartition, int]:
    """Each partition's origin after a restore: its origin in the savepoint's generation.

    A partition that appeared after the savepoint keeps its origin of the present generation.
    """
    then = {head.tp: head.origin for head in tx.chain.heads(found.pipeline, found.generation)}
    now = {head.tp: head.origin for head in tx.chain.heads(found.pipeline, row.generation)}
    saved = {head.tp: then.get(head.tp, head.next_offset) for head in found.heads}
    return saved | {tp: origin for tp, origin in now.items() if tp not in saved}


def shown_for_good(declared: Pipeline) -> str | None:
    """Why epochs cannot be undone, if a sink shows them for good."""
    if not declared.post_commit_sinks:
        return None
    return (
        f"{', '.join(map(str, declared.post_commit_sinks))} takes back nothing of what it was given. Let a pipeline"
        " under another name, with sinks of its own, read the range again."
    )


def not_declared(tx: Transaction, declared: Pipeline, epochs: Sequence[int]) -> str | None:
    """Why epochs cannot be undone, if they wrote to tables that were removed from the declaration."""
    tables = {QUARANTINE, *(rows.table for rows in declared.written)}
    written = tx.savepoints.rows_sealed(declared.name, epochs)
    left = sorted(table for table, rows in written.items() if rows and table not in tables)
    if not left:
        return None
    return (
        f"{declared.name} no longer declares {', '.join(left)}, which holds rows of epochs"
        f" {', '.join(map(str, epochs))}; declare it again until this is done."
    )


def obstacles(
    tx: Transaction, declared: Pipeline, found: Savepoint, row: PipelineRow, undone: Sequence[int] | None, seen: Logs
) -> Iterator[str]:
    """The reasons against going back. ``undone`` are the epochs that would be undone; None for a new pipeline.

    ``tx`` holds the pipeline's row.

    Raises:
        ChangeRefusedError, TargetError: the declaration changed what must not change, or a target is not as declared.
    """
    dropped = tx.operators.standing(declared.name).dropped
    if dropped is not None:
        yield f"{declared.name} was dropped {dropped}; another pipeline may own its targets now."
    if undone is not None:
        yield from _of_its_own(tx, declared, found, row, undone)
    elif row.last_epoch_id:
        yield f"{declared.name} is not new: its last epoch is {row.last_epoch_id}. Declare it under another name."
    yield from _declared_otherwise(tx, declared, found, new=undone is None)
    tx.targets.inspect(declared)
    wrote = with_rows(tx, declared.name, undone or ())
    for_good = shown_for_good(declared)
    if wrote and for_good is not None:
        yield for_good
    for sink in declared.targets:
        reason = tx.targets.cannot_undo(declared, sink, wrote) if wrote else None
        if reason is not None:
            yield reason
    yield from _unreadable(tx, declared, found, row, undone, seen)


def _of_its_own(
    tx: Transaction, declared: Pipeline, savepoint: Savepoint, row: PipelineRow, undone: Sequence[int]
) -> Iterator[str]:
    if savepoint.imported_at is not None:
        yield f"{savepoint} came from a file; a new pipeline begins from it, with --of {savepoint.pipeline}."
    if moved_clusters(savepoint.cluster_id, row.cluster_id):
        yield (
            f"{savepoint} holds offsets of Kafka cluster {savepoint.cluster_id}, and {declared.name} reads another one"
            " now."
        )
    if set(savepoint.states) - {state.table for state in declared.states}:
        yield f"{savepoint} has state {', '.join(savepoint.states)}, which {declared.name} no longer declares."
    for epoch_id in undone:
        replay = tx.epochs.lock(declared.name, epoch_id)
        if replay.kind is EpochKind.EXTEND_BACK:
            yield (
                f"{replay} extended {declared.name} back after {savepoint} was made. What it read lies before every"
                " head, so that no run would read it again. Go back to a savepoint from after it."
            )
        if replay.replays is not None and replay.replays <= savepoint.epoch_id:
            yield f"{replay} took the place of epoch {replay.replays}, whose rows the savepoint would need."
    stood = tx.epochs.lock(declared.name, savepoint.epoch_id)
    if tx.epochs.is_undone(stood):
        yield (
            f"{stood}, after which {savepoint} was made, was undone by a restore or a replay: its rows are gone. Go"
            " back to a savepoint from before it."
        )
    check_changes(tx, declared)
    left = not_declared(tx, declared, undone)
    if left is not None:
        yield left


def _declared_otherwise(tx: Transaction, declared: Pipeline, savepoint: Savepoint, *, new: bool) -> Iterator[str]:
    """Reasons why the savepoint's state or windows do not fit today's declaration."""
    if len(savepoint.states) != len(declared.states):
        yield f"{savepoint} has {len(savepoint.states)} state tables, {declared.name} declares {len(declared.states)}."
    before, now = json.loads(tx.savepoints.declaration(savepoint)), json.loads(declared.stored())
    if new and before.get("windows") and now.get("windows"):
        before["windows"]["into"] = now["windows"]["into"]  # a new pipeline writes another table
    for change in changes(before, now):
        if change.effect is Effect.REFUSED:
            yield f"since {savepoint} was made, {change}: {change.advice}."


def _unreadable(
    tx: Transaction,
    declared: Pipeline,
    savepoint: Savepoint,
    row: PipelineRow,
    undone: Sequence[int] | None,
    seen: Logs,
) -> Iterator[str]:
    """Partitions that Kafka no longer holds from their restored head on, and undone records that it no longer holds."""
    cluster_id = savepoint.cluster_id if undone is None else row.cluster_id
    for _, (before, now) in sorted(moved_clusters(cluster_id, seen.view.cluster_id).items()):
        yield f"the offsets of {savepoint} belong to Kafka cluster {before}, and the connection leads to {now}."
    begins = {head.tp: head.next_offset for head in savepoint.heads}
    if undone is not None:
        begins = {**origins(tx, savepoint, row), **begins}
    logs = {partition.tp: partition for partition in seen.view.partitions}
    for head in savepoint.heads if undone is not None else ():
        cut = tx.chain.cut_since(declared.name, savepoint.generation, head.tp)
        if cut is not None and cut < head.next_offset and declared.source.keeps(head.tp.topic):
            yield (
                f"{head.tp} would go on at offset {head.next_offset}, but its log was cut off at offset {cut} when its"
                " topic was adopted; what came in the place of the lost records would not be read."
            )
    for tp, offset in begins.items():
        if not declared.source.keeps(tp.topic):
            continue
        log = logs.get(tp)
        if log is None:
            yield (
                f"the source no longer has {tp} as it was then (topic id {tp.topic_id}); its records cannot be read"
                " again."
            )
        elif not log.log_start <= offset <= log.high_watermark:
            yield (
                f"{tp} would go on at offset {offset}, but its log holds [{log.log_start}, {log.high_watermark}) now;"
                " what is undone could not be read again."
            )
    if undone is not None:
        yield from _lost_if_undone(tx, declared, begins, undone, seen)


def _lost_if_undone(
    tx: Transaction, declared: Pipeline, begins: Reached, undone: Sequence[int], seen: Logs
) -> Iterator[str]:
    """What undone epochs read and no later run would read: their rows would be lost, whatever is declared (INV-9)."""
    ranges = ranges_read(tx, declared.name, undone)
    if not set(ranges) <= set(seen.ranges):
        yield f"another run of {declared.name} committed meanwhile; try again."
        return
    for planned in ranges:
        topic = planned.tp.topic
        if not declared.source.keeps(topic):
            yield (
                f"{declared.name} no longer reads {topic}, of which undone epochs read {planned}; declare it again"
                " until this is done. If it is gone, its records cannot be read again: go back to a savepoint from"
                " after they were read."
            )
    cut = (cut_off_since(tx, tx.epochs.lock(declared.name, epoch_id)) for epoch_id in undone)
    reason = cannot_be_read_again(ranges, seen.view, seen.ends, seen.counted) or next(filter(None, cut), None)
    if reason is not None:
        yield f"{reason}; what is undone could not be read again."
    for planned in ranges:
        if planned.range.start < begins.get(planned.tp, planned.range.until):
            yield f"{planned} lies before the head of the savepoint, so that no run would read it again."
