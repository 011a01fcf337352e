"""Epochs, and attempts with their staging: the adapters behind `EpochRows` and `Attempts` of `epochline.ports`."""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from epochline.declare.names import QUARANTINE, WRITER
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochNotFoundError, EpochStateError
from epochline.ports import Manifest, NewEpoch, PipelineRow
from epochline.postgres.ledger import rows as of
from epochline.postgres.ledger.parts import EXTERNAL, counts_of, refused_values
from epochline.postgres.ledger.rows import key_of, range_values
from epochline.postgres.queries.statements import InTransaction, change, defined_columns, settle_table
from epochline.postgres.targets.columns import columns_of, staged_types
from epochline.protocol.balances import PartitionCounts, add_up
from epochline.protocol.bounds import Verdict
from epochline.protocol.epoch import Attempt, Counts, Epoch, EpochState, Run
from epochline.protocol.failures import RecordedError
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.refused import RefusedRow
from epochline.protocol.sink import WrittenPart
from epochline.protocol.staging import StagingTicket
from epochline.protocol.staging_tables import staged_external, staged_tables


class PostgresEpochs(InTransaction):
    """Epochs and pipelines in the ledger's tables."""

    def _epoch(self, name: str, **values: Any) -> Epoch | None:
        row = self._run(name, **values).one_or_none()
        return None if row is None else of.epoch(row)

    def lock_pipeline(self, pipeline: str) -> PipelineRow:
        row = self._run("lock_pipeline", pipeline=pipeline).one_or_none()
        if row is None:
            self._run("make_pipeline", pipeline=pipeline)
            row = self._run("lock_pipeline", pipeline=pipeline).one()
        return of.pipeline_row(row)

    def pipeline(self, pipeline: str) -> PipelineRow | None:
        row = self._run("pipeline", pipeline=pipeline).one_or_none()
        return None if row is None else of.pipeline_row(row)

    def skip_ids(self, pipeline: str, epoch_id: int) -> None:
        self._run("skip_ids", pipeline=pipeline, epoch_id=epoch_id)

    def remember_cluster(self, pipeline: str, cluster_id: str) -> None:
        self._run("remember_cluster", pipeline=pipeline, cluster_id=cluster_id)

    def unfinished(self, pipeline: str) -> Epoch | None:
        return self._epoch("unfinished_epoch", pipeline=pipeline)

    def newest_of_run(self, pipeline: str, run: Run) -> Epoch | None:
        return self._epoch("newest_epoch_of_run", pipeline=pipeline, dag_id=run.dag_id, run_id=run.run_id)

    def lock(self, pipeline: str, epoch_id: int) -> Epoch:
        epoch = self._epoch("lock_epoch", pipeline=pipeline, epoch_id=epoch_id)
        if epoch is None:
            raise EpochNotFoundError(f"the ledger has no epoch {epoch_id} of a pipeline {pipeline!r}.")
        return epoch

    def find(self, pipeline: str, epoch_id: int) -> Epoch | None:
        return self._epoch("epoch", pipeline=pipeline, epoch_id=epoch_id)

    def pipelines(self) -> Sequence[str]:
        return [row.pipeline for row in self._run("pipelines")]

    def newest_committed(self, pipeline: str) -> Epoch | None:
        return self._epoch("newest_committed_epoch", pipeline=pipeline)

    def stale(self, after: timedelta) -> Sequence[Epoch]:
        return list(map(of.epoch, self._run("stale_epochs", after=after.total_seconds())))

    def later_than(self, pipeline: str, epoch_id: int) -> Sequence[Epoch]:
        return list(map(of.epoch, self._run("later_epochs", pipeline=pipeline, epoch_id=epoch_id)))

    def insert(
        self,
        pipeline: Pipeline,
        row: PipelineRow,
        run: Run,
        draft: NewEpoch,
        targets: Mapping[str, Mapping[str, str]],
        *,
        lease: timedelta,
        note: str | None,
    ) -> Epoch:
        self._keep_declaration(pipeline)
        epoch_id = self._run("next_epoch_id", pipeline=pipeline.name).scalar_one()
        self._run(
            "insert_epoch",
            pipeline=pipeline.name, epoch_id=epoch_id, generation=row.generation, kind=draft.kind.value,
            **asdict(run), hash=pipeline.declaration_hash, note=note, lease=lease.total_seconds(),
            interval_start=draft.interval and draft.interval.start,
            interval_end=draft.interval and draft.interval.until,
            record_limit=draft.record_limit, replays=draft.replays, plan_seconds=draft.plan_seconds,
        )  # fmt: skip
        for planned in draft.ranges:
            self._run("insert_planned_range", pipeline=pipeline.name, epoch_id=epoch_id, **range_values(planned))
        self._keep_targets(pipeline.name, epoch_id, targets)
        return self.lock(pipeline.name, epoch_id)

    def reopen(
        self, epoch: Epoch, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]], lease: timedelta
    ) -> Epoch:
        self._keep_declaration(pipeline)
        values = {"hash": pipeline.declaration_hash, "lease": lease.total_seconds()}
        self._change("reopen_epoch", epoch, EpochState.PLANNED, **values)
        self._run("delete_planned_targets", **key_of(epoch))
        self._keep_targets(epoch.pipeline, epoch.epoch_id, targets)
        return self.lock(epoch.pipeline, epoch.epoch_id)

    def _keep_declaration(self, pipeline: Pipeline) -> None:
        values = {"hash": pipeline.declaration_hash, "body": pipeline.stored()}
        self._run("keep_declaration", pipeline=pipeline.name, **values)

    def _keep_targets(self, pipeline: str, epoch_id: int, targets: Mapping[str, Mapping[str, str]]) -> None:
        for sink, columns in targets.items():
            # A list of pairs: jsonb does not keep the order of members, and staging needs the order of the columns.
            body = json.dumps(list(columns.items()))
            self._run("keep_planned_target", pipeline=pipeline, epoch_id=epoch_id, sink=sink, columns=body)

    def ranges(self, epoch: Epoch) -> Sequence[PlannedRange]:
        return list(map(of.planned_range, self._run("planned_ranges", **key_of(epoch))))

    def planned_targets(self, epoch: Epoch) -> Mapping[str, Mapping[str, str]]:
        return {row.sink: dict(row.columns) for row in self._run("planned_targets", **key_of(epoch))}

    def declaration(self, epoch: Epoch) -> Pipeline:
        return Pipeline.from_stored(json.dumps(self._run("declaration_of_epoch", **key_of(epoch)).scalar_one()))

    def last_declaration(self, pipeline: str) -> Pipeline | None:
        body = self._run("last_declaration", pipeline=pipeline).scalar_one_or_none()
        return None if body is None else Pipeline.from_stored(json.dumps(body))

    def declarations(self, pipeline: str) -> Iterator[Pipeline]:
        for body in self._run("declarations", pipeline=pipeline).scalars():
            yield Pipeline.from_stored(json.dumps(body))

    def renew_lease(self, epoch: Epoch, attempt: int, lease: timedelta) -> bool:
        lease_seconds = lease.total_seconds()
        return self._run("renew_lease", **key_of(epoch), attempt=attempt, lease=lease_seconds).rowcount == 1

    def mark_pre_committed(
        self,
        epoch: Epoch,
        counts: Counts,
        seen: Mapping[tuple[str, int], PartitionCounts],
        verdict: Verdict | None = None,
    ) -> None:
        judged = {
            "approval": verdict and verdict.approval.value,
            "outside": str(verdict or "") or None,
            "measured": verdict and json.dumps({key: str(value) for key, value in verdict.numbers.items()}),
        }
        self._change("mark_pre_committed", epoch, EpochState.PRE_COMMITTED, **asdict(counts), **judged)
        for (topic, partition), partition_counts in seen.items():
            self._run("count_range", **key_of(epoch), topic=topic, partition=partition, **asdict(partition_counts))

    def approve(self, epoch: Epoch, attempt: int, by: str, reason: str) -> bool:
        decision = {"attempt": attempt, "by": by, "reason": reason}
        return self._run("approve_epoch", **key_of(epoch), **decision).rowcount == 1

    def mark_committed(self, epoch: Epoch, rows_written: int) -> Epoch:
        self._change("mark_committed", epoch, EpochState.COMMITTED, rows_written=rows_written)
        return self.lock(epoch.pipeline, epoch.epoch_id)

    def is_undone(self, epoch: Epoch) -> bool:
        return self._run("epoch", **key_of(epoch)).one().undone_by is not None

    def supersede(self, epoch: Epoch) -> bool:
        replaced = {"pipeline": epoch.pipeline, "epochs": [epoch.replays]}
        requeued = self._run("requeued_of", **replaced).scalar_one()
        if requeued or self._run("mark_undone", **replaced, by=epoch.epoch_id).rowcount != 1:
            return False
        self._run("delete_claims", **replaced)
        self._run("delete_quarantined", **replaced)
        return True

    def mark_aborted(self, epoch: Epoch, reason: str) -> Epoch:
        self._change("mark_aborted", epoch, EpochState.ABORTED, reason=reason)
        return self.lock(epoch.pipeline, epoch.epoch_id)

    def _change(self, statement: str, epoch: Epoch, state: EpochState, **values: Any) -> None:
        """Change the state of an epoch, if the table of states allows it."""
        epoch.to(state)
        if self._run(statement, **key_of(epoch), **values).rowcount != 1:
            raise EpochStateError(
                f"{epoch}: changed under its own row lock; it cannot become {state}. Nothing was changed."
            )


class PostgresAttempts(InTransaction):
    """Attempts in the ledger's tables, staging tables in ``epochline_staging``."""

    def begin(
        self, epoch: Epoch, run: Run, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]
    ) -> StagingTicket:
        values = {**key_of(epoch), "attempt": epoch.attempt + 1, **asdict(run)}
        row = self._run("insert_attempt", **values).one()
        self._run("count_attempt", **values)
        ticket = self.ticket(of.attempt(row), pipeline, targets)
        may_stage = self._run("writer_may_stage").scalar_one()
        for staged in ticket.tables:
            target = columns_of(self._connection, staged.sink)
            collations = {name: column.collate for name, column in target.items()}
            columns = defined_columns(staged_types(staged.columns, target), collations)
            # Not UNLOGGED: sealed rows must survive a crash of the server (INV-6).
            create = "CREATE TABLE epochline_staging.{table} ({columns})"
            change(self._connection, create, table=staged.table, columns=columns)
            if may_stage:
                grant = "GRANT INSERT ON epochline_staging.{table} TO {writer}"
                change(self._connection, grant, table=staged.table, writer=WRITER)
            settle_table(self._connection, "epochline_staging", staged.table)
            self._run("register_staging", attempt_id=ticket.attempt_id, sink=staged.sink, table_name=staged.table)
        return ticket

    def ticket(self, attempt: Attempt, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]) -> StagingTicket:
        return StagingTicket(
            pipeline=attempt.pipeline,
            epoch_id=attempt.epoch_id,
            attempt=attempt.number,
            attempt_id=attempt.attempt_id,
            application_name=attempt.application_name,
            tables=staged_tables(pipeline, targets, attempt.epoch_id, attempt.number),
            generation=attempt.generation,
            token=attempt.token,
            external=staged_external(pipeline),
        )

    def live(self, epoch: Epoch) -> Attempt | None:
        row = self._run("live_attempt", **key_of(epoch)).one_or_none()
        return None if row is None else of.attempt(row)

    def committed_token(self, pipeline: str, epoch_id: int) -> str | None:
        token = self._run("committed_token", pipeline=pipeline, epoch_id=epoch_id).scalar_one_or_none()
        return None if token is None else str(token)

    def lock_attempt(self, attempt: Attempt) -> Attempt:
        return of.attempt(self._run("lock_attempt", attempt_id=attempt.attempt_id).one())

    def fence(self, attempt: Attempt, reason: str) -> None:
        self._run("fence_attempt", attempt_id=attempt.attempt_id, reason=reason)

    def note_error(self, attempt: Attempt, error: RecordedError) -> None:
        noted = {"error": str(error), "error_class": error.error_class, "command": error.command}
        self._run("note_attempt_error", attempt_id=attempt.attempt_id, **noted)

    def seal(self, attempt: Attempt, rows_staged: int) -> None:
        self._run("seal_attempt", attempt_id=attempt.attempt_id, rows_staged=rows_staged)

    def keep_refused(self, attempt: Attempt, rows: Sequence[RefusedRow]) -> None:
        self._run("keep_refused_rows", attempt_id=attempt.attempt_id, **refused_values(rows))

    def finish(self, attempt: Attempt) -> None:
        self._run("finish_attempt", attempt_id=attempt.attempt_id)

    def manifests(self, attempt: Attempt) -> Sequence[Manifest]:
        return [
            Manifest(sink=row.sink, write_id=str(row.write_id), parts=row.parts, rows=row.rows, body=row.body)
            for row in self._run("manifests", attempt_id=attempt.attempt_id)
        ]

    def part_sums(self, attempt: Attempt) -> Sequence[Manifest]:
        rows = self._run("part_sums", attempt_id=attempt.attempt_id)
        return [Manifest(sink=row.sink, write_id=str(row.write_id), parts=row.parts, rows=row.rows) for row in rows]

    def seen(self, attempt: Attempt) -> Mapping[tuple[str, int], PartitionCounts]:
        rows = self._run("part_messages", attempt_id=attempt.attempt_id, sink=QUARANTINE)
        return add_up(counts_of(row.message) for row in rows)

    def parts(self, attempt: Attempt, sink: str) -> Sequence[WrittenPart]:
        return [
            WrittenPart(number=row.spark_partition, rows=row.rows, message=row.message.get(EXTERNAL, {}))
            for row in self._run("part_messages", attempt_id=attempt.attempt_id, sink=sink)
        ]

    def end_sessions(self, attempt: Attempt) -> int:
        return self._run("end_sessions", attempt_id=attempt.attempt_id, host=socket.gethostname()).rowcount

    def left_over(self, pipeline: str) -> Sequence[Attempt]:
        return [of.attempt(row) for row in self._run("left_over_attempts", pipeline=pipeline)]

    def unexplained(self) -> Sequence[str]:
        return [row.relname for row in self._run("unexplained_staging")]

    def drop_staging(self, attempt: Attempt) -> None:
        for (table,) in self._run("staging_tables", attempt_id=attempt.attempt_id):
            change(self._connection, "DROP TABLE IF EXISTS epochline_staging.{table}", table=table)
        self._run("staging_dropped", attempt_id=attempt.attempt_id)
