"""Epoch rows: the adapter behind `epochline.ports.EpochRows`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row

from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochNotFoundError, EpochStateError, LedgerError
from epochline.ports import PipelineRow
from epochline.postgres.queries.statements import run as execute
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.epoch import Counts, Epoch, EpochKind, EpochState, Interval, Run
from epochline.protocol.offsets import OffsetRange, PlannedRange, TopicPartition


def _epoch(row: Row[Any]) -> Epoch:
    return Epoch(
        pipeline=row.pipeline,
        epoch_id=row.epoch_id,
        generation=row.generation,
        state=EpochState(row.state),
        attempt=row.attempt,
        kind=EpochKind(row.kind),
        run=Run(dag_id=row.dag_id, run_id=row.run_id, host=row.host),
        declaration_hash=row.declaration_hash,
        lease_expired=row.lease_expired,
        planned_at=row.planned_at,
        approval=row.approval,
        note=row.note,
        error=row.error,
        error_class=_newer(row, "error_class"),
        error_command=_newer(row, "error_command"),
        pre_committed_at=row.pre_committed_at,
        committed_at=row.committed_at,
        aborted_at=row.aborted_at,
        counts=Counts(
            read=row.records_read or 0,
            passed=row.records_passed or 0,
            skipped=row.records_skipped or 0,
            quarantined=row.records_quarantined or 0,
        ),
        rows_written=row.rows_written,
        record_limit=row.record_limit,
        interval=Interval(start=row.interval_start, until=row.interval_end) if row.interval_start else None,
        replays=row.replays,
        attempts_before=_newer(row, "attempts_before"),
    )


def _newer(row: Row[Any], column: str) -> Any:
    """The value of a column that an older ledger lacks. PostgreSQL does not notice that a row lacks it."""
    try:
        return getattr(row, column)
    except AttributeError:
        raise LedgerError("The ledger is older than this code: run `epochline migrate`.") from None


class PostgresEpochs:
    """Epochs and pipelines in the ledger's tables."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _one(self, name: str, **values: Any) -> Epoch | None:
        row = execute(self._connection, name, **values).one_or_none()
        return None if row is None else _epoch(row)

    def lock_pipeline(self, pipeline: str) -> PipelineRow:
        row = execute(self._connection, "lock_pipeline", pipeline=pipeline).one_or_none()
        if row is None:
            execute(self._connection, "make_pipeline", pipeline=pipeline)
            row = execute(self._connection, "lock_pipeline", pipeline=pipeline).one()
        return PipelineRow(generation=row.generation, last_epoch_id=row.last_epoch_id, cluster_id=row.cluster_id)

    def pipeline(self, pipeline: str) -> PipelineRow | None:
        row = execute(self._connection, "pipeline", pipeline=pipeline).one_or_none()
        if row is None:
            return None
        return PipelineRow(generation=row.generation, last_epoch_id=row.last_epoch_id, cluster_id=row.cluster_id)

    def skip_ids(self, pipeline: str, epoch_id: int) -> None:
        execute(self._connection, "skip_ids", pipeline=pipeline, epoch_id=epoch_id)

    def remember_cluster(self, pipeline: str, cluster_id: str) -> None:
        execute(self._connection, "remember_cluster", pipeline=pipeline, cluster_id=cluster_id)

    def unfinished(self, pipeline: str) -> Epoch | None:
        return self._one("unfinished_epoch", pipeline=pipeline)

    def newest_of_run(self, pipeline: str, run: Run) -> Epoch | None:
        return self._one("newest_epoch_of_run", pipeline=pipeline, dag_id=run.dag_id, run_id=run.run_id)

    def lock(self, pipeline: str, epoch_id: int) -> Epoch:
        epoch = self._one("lock_epoch", pipeline=pipeline, epoch_id=epoch_id)
        if epoch is None:
            raise EpochNotFoundError(f"the ledger has no epoch {epoch_id} of a pipeline {pipeline!r}.")
        return epoch

    def find(self, pipeline: str, epoch_id: int) -> Epoch | None:
        return self._one("epoch", pipeline=pipeline, epoch_id=epoch_id)

    def pipelines(self) -> Sequence[str]:
        return [row.pipeline for row in execute(self._connection, "known_pipelines")]

    def newest_committed(self, pipeline: str) -> Epoch | None:
        row = execute(self._connection, "newest_committed_epoch", pipeline=pipeline).one_or_none()
        return None if row is None else _epoch(row)

    def stale(self, after: timedelta) -> Sequence[Epoch]:
        return [_epoch(row) for row in execute(self._connection, "stale_epochs", after=after.total_seconds())]

    def later_than(self, pipeline: str, epoch_id: int) -> Sequence[Epoch]:
        rows = execute(self._connection, "later_epochs", pipeline=pipeline, epoch_id=epoch_id)
        return [_epoch(row) for row in rows]

    def insert(
        self,
        pipeline: Pipeline,
        row: PipelineRow,
        run: Run,
        ranges: Sequence[PlannedRange],
        targets: Mapping[str, Mapping[str, str]],
        *,
        kind: EpochKind,
        lease: timedelta,
        record_limit: int | None,
        note: str | None,
        interval: Interval | None = None,
        replays: int | None = None,
        plan_seconds: float | None = None,
    ) -> Epoch:
        self._keep_declaration(pipeline)
        epoch_id = execute(self._connection, "next_epoch_id", pipeline=pipeline.name).scalar_one()
        execute(
            self._connection, "insert_epoch",
            pipeline=pipeline.name, epoch_id=epoch_id, generation=row.generation, kind=kind.value,
            dag_id=run.dag_id, run_id=run.run_id, host=run.host, hash=pipeline.declaration_hash,
            record_limit=record_limit, note=note, lease=lease.total_seconds(),
            interval_start=interval and interval.start, interval_end=interval and interval.until, replays=replays,
            plan_seconds=plan_seconds,
        )  # fmt: skip
        for planned in ranges:
            execute(
                self._connection, "insert_planned_range",
                pipeline=pipeline.name, epoch_id=epoch_id, topic=planned.tp.topic, topic_id=planned.tp.topic_id,
                partition=planned.tp.partition, start_offset=planned.range.start, until_offset=planned.range.until,
                leader_epoch=planned.leader_epoch,
            )  # fmt: skip
        self._keep_targets(pipeline.name, epoch_id, targets)
        return self.lock(pipeline.name, epoch_id)

    def reopen(
        self, epoch: Epoch, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]], lease: timedelta
    ) -> Epoch:
        epoch.to(EpochState.PLANNED)
        self._keep_declaration(pipeline)
        changed = execute(
            self._connection, "reopen_epoch",
            pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, hash=pipeline.declaration_hash,
            lease=lease.total_seconds(),
        )  # fmt: skip
        _expect_one(changed.rowcount, epoch, EpochState.PLANNED)
        execute(self._connection, "delete_planned_targets", pipeline=epoch.pipeline, epoch_id=epoch.epoch_id)
        self._keep_targets(epoch.pipeline, epoch.epoch_id, targets)
        return self.lock(epoch.pipeline, epoch.epoch_id)

    def _keep_declaration(self, pipeline: Pipeline) -> None:
        execute(
            self._connection, "keep_declaration",
            hash=pipeline.declaration_hash, pipeline=pipeline.name, body=pipeline.stored(),
        )  # fmt: skip

    def _keep_targets(self, pipeline: str, epoch_id: int, targets: Mapping[str, Mapping[str, str]]) -> None:
        for sink, columns in targets.items():
            # A list of pairs: jsonb does not keep the order of members, and staging needs the order of the columns.
            body = json.dumps(list(columns.items()))
            execute(
                self._connection, "keep_planned_target",
                pipeline=pipeline, epoch_id=epoch_id, sink=sink, columns=body,
            )  # fmt: skip

    def ranges(self, epoch: Epoch) -> Sequence[PlannedRange]:
        rows = execute(self._connection, "planned_ranges", pipeline=epoch.pipeline, epoch_id=epoch.epoch_id)
        return [
            PlannedRange(
                tp=TopicPartition(topic=row.topic, partition=row.partition, topic_id=row.topic_id),
                range=OffsetRange(start=row.start_offset, until=row.until_offset),
                leader_epoch=row.leader_epoch,
                records=row.records_read,
            )
            for row in rows
        ]

    def planned_targets(self, epoch: Epoch) -> Mapping[str, Mapping[str, str]]:
        rows = execute(self._connection, "planned_targets", pipeline=epoch.pipeline, epoch_id=epoch.epoch_id)
        return {row.sink: dict(row.columns) for row in rows}

    def declaration(self, epoch: Epoch) -> Pipeline:
        row = execute(self._connection, "declaration_of_epoch", pipeline=epoch.pipeline, epoch_id=epoch.epoch_id)
        return Pipeline.from_stored(json.dumps(row.scalar_one()))

    def last_declaration(self, pipeline: str) -> Pipeline | None:
        body = execute(self._connection, "last_declaration", pipeline=pipeline).scalar_one_or_none()
        return None if body is None else Pipeline.from_stored(json.dumps(body))

    def declarations(self, pipeline: str) -> Iterator[Pipeline]:
        for body in execute(self._connection, "declarations", pipeline=pipeline).scalars():
            yield Pipeline.from_stored(json.dumps(body))

    def renew_lease(self, epoch: Epoch, attempt: int, lease: timedelta) -> bool:
        changed = execute(
            self._connection, "renew_lease",
            pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, attempt=attempt, lease=lease.total_seconds(),
        )  # fmt: skip
        return changed.rowcount == 1

    def mark_pre_committed(self, epoch: Epoch, counts: Counts, seen: Mapping[tuple[str, int], PartitionCounts]) -> None:
        epoch.to(EpochState.PRE_COMMITTED)
        changed = execute(
            self._connection, "mark_pre_committed",
            pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, read=counts.read, passed=counts.passed,
            skipped=counts.skipped, quarantined=counts.quarantined,
        )  # fmt: skip
        _expect_one(changed.rowcount, epoch, EpochState.PRE_COMMITTED)
        for (topic, partition), one in seen.items():
            execute(
                self._connection, "count_range",
                pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, topic=topic, partition=partition,
                read=one.received, passed=one.passed, skipped=one.skipped, quarantined=one.quarantined,
                first_offset=one.first_offset, last_offset=one.last_offset, digest=one.digest, newest=one.newest,
                oldest_timestamp=one.oldest_timestamp, newest_timestamp=one.newest_timestamp,
            )  # fmt: skip

    def mark_committed(self, epoch: Epoch, rows_written: int) -> Epoch:
        epoch.to(EpochState.COMMITTED)
        changed = execute(
            self._connection, "mark_committed",
            pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, rows_written=rows_written,
        )  # fmt: skip
        _expect_one(changed.rowcount, epoch, EpochState.COMMITTED)
        return self.lock(epoch.pipeline, epoch.epoch_id)

    def is_undone(self, epoch: Epoch) -> bool:
        where = {"pipeline": epoch.pipeline, "epoch_id": epoch.epoch_id}
        return execute(self._connection, "undone_by", **where).scalar_one() is not None

    def supersede(self, epoch: Epoch) -> bool:
        replaced = {"pipeline": epoch.pipeline, "epochs": [epoch.replays]}
        requeued = execute(self._connection, "requeued_of", **replaced).scalar_one()
        if requeued or execute(self._connection, "mark_undone", **replaced, by=epoch.epoch_id).rowcount != 1:
            return False
        execute(self._connection, "delete_claims", **replaced)
        execute(self._connection, "delete_quarantined", **replaced)
        return True

    def mark_aborted(self, epoch: Epoch, reason: str) -> Epoch:
        epoch.to(EpochState.ABORTED)
        changed = execute(
            self._connection, "mark_aborted", pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, reason=reason
        )
        _expect_one(changed.rowcount, epoch, EpochState.ABORTED)
        return self.lock(epoch.pipeline, epoch.epoch_id)


def _expect_one(rows: int, epoch: Epoch, state: EpochState) -> None:
    if rows != 1:
        raise EpochStateError(
            f"{epoch}: changed under its own row lock; it cannot become {state}. Nothing was changed."
        )
