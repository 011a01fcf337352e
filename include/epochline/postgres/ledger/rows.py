"""Rows of the ledger as values of the protocol, and such values as a statement takes them."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from epochline.declare.event_time import PartitionTime
from epochline.ports import DueReceipt, PipelineRow
from epochline.postgres.queries.statements import Row
from epochline.protocol.epoch import Attempt, AttemptState, Counts, Epoch, EpochKind, EpochState, Interval, Run
from epochline.protocol.offsets import OffsetRange, PlannedRange, TopicPartition
from epochline.protocol.savepoint import SavedHead, Savepoint
from epochline.protocol.sink import Committable, SinkAttempt

_COMPOSED = {"state", "kind", "run", "counts", "interval"}
"""Fields of an epoch that are no column of their own, or another type than the column."""


def key_of(value: Epoch | Attempt | DueReceipt) -> dict[str, Any]:
    """Pipeline and epoch id."""
    return {"pipeline": value.pipeline, "epoch_id": value.epoch_id}


def named(savepoint: Savepoint) -> dict[str, Any]:
    """Pipeline and name of a savepoint."""
    return {"pipeline": savepoint.pipeline, "savepoint": savepoint.name}


def range_values(planned: PlannedRange) -> dict[str, Any]:
    """Partition, offsets and leader epoch."""
    offsets = {"start_offset": planned.range.start, "until_offset": planned.range.until}
    return {**asdict(planned.tp), **offsets, "leader_epoch": planned.leader_epoch}


def pipeline_row(row: Row) -> PipelineRow:
    """A pipeline."""
    return PipelineRow(generation=row.generation, last_epoch_id=row.last_epoch_id, cluster_id=row.cluster_id)


def partition(row: Row) -> TopicPartition:
    """The partition that a row is of."""
    return TopicPartition(topic=row.topic, partition=row.partition, topic_id=row.topic_id)


def offsets(row: Row) -> OffsetRange:
    """From ``start_offset`` and ``until_offset``."""
    return OffsetRange(start=row.start_offset, until=row.until_offset)


def planned_range(row: Row) -> PlannedRange:
    """A planned range."""
    return PlannedRange(tp=partition(row), range=offsets(row), leader_epoch=row.leader_epoch, records=row.records_read)


def saved_head(columns: Mapping[Any, Any]) -> SavedHead:
    """A head with its event time, from the columns that `head_columns` gives."""
    return SavedHead(
        tp=TopicPartition(**{name: columns[name] for name in ("topic", "partition", "topic_id")}),
        time=PartitionTime(newest=columns["newest_event_time"], read_at=columns["read_at"]),
        next_offset=columns["next_offset"], leader_epoch=columns["leader_epoch"],
    )  # fmt: skip


def head_columns(head: SavedHead) -> dict[str, Any]:
    """The columns of a head with its event time (the inverse of `saved_head`)."""
    times = {"newest_event_time": head.time.newest, "read_at": head.time.read_at}
    return {**asdict(head.tp), "next_offset": head.next_offset, "leader_epoch": head.leader_epoch, **times}


def epoch(row: Row) -> Epoch:
    """An epoch."""
    columns = row._asdict()
    copied = {field.name for field in fields(Epoch)} - _COMPOSED
    return Epoch(
        **{name: columns[name] for name in copied},
        state=EpochState(row.state),
        kind=EpochKind(row.kind),
        run=Run(dag_id=row.dag_id, run_id=row.run_id, host=row.host),
        counts=Counts(**{name: columns[f"records_{name}"] or 0 for name in Counts.__slots__}),
        interval=Interval(start=row.interval_start, until=row.interval_end) if row.interval_start else None,
    )


def attempt(row: Row) -> Attempt:
    """An attempt. The view ``epochline.attempts`` tells the same state."""
    state = AttemptState.RUNNING
    if row.failed_at is not None and (row.fenced_at is not None or row.sealed_at is None):
        state = AttemptState.FAILED
    elif row.fenced_at is not None:
        state = AttemptState.FENCED
    elif row.ended_at is not None:
        state = AttemptState.COMMITTED
    elif row.sealed_at is not None:
        state = AttemptState.SEALED
    copied = ("attempt_id", "pipeline", "epoch_id", "error", "error_class", "error_command", "generation")
    return Attempt(
        **{name: getattr(row, name) for name in copied},
        number=row.attempt,
        token=str(row.token),
        state=state,
        sealed=row.sealed_at is not None,
        fenced=row.fenced_at is not None,
        ended=row.job_ended_at is not None,
    )


def committable(pipeline: str, row: Row) -> Committable:
    """What the seal of one sink left, from a row with the attempt's number, token and generation."""
    attempt = SinkAttempt(
        pipeline=pipeline, generation=row.generation, epoch_id=row.epoch_id, attempt=row.attempt, token=str(row.token)
    )
    return Committable(attempt=attempt, rows=row.rows, body=row.body)
