"""Attempts and their staging tables: the adapter behind `epochline.ports.Attempts`."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg2 import sql
from sqlalchemy import Connection, Row

from epochline.declare.names import QUARANTINE, WRITER
from epochline.declare.pipeline import Pipeline
from epochline.ports import Manifest, PartSum
from epochline.postgres.ledger.parts import EXTERNAL, counts_of, refused_values
from epochline.postgres.queries.collations import collations_of
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.ownership import settle_table
from epochline.postgres.queries.statements import run as execute
from epochline.postgres.targets.shapes import staged_types, table_shapes
from epochline.protocol.balances import PartitionCounts, add_up
from epochline.protocol.epoch import Attempt, AttemptState, Epoch, Run
from epochline.protocol.failures import RecordedError
from epochline.protocol.refused import RefusedRow
from epochline.protocol.sink import WrittenPart
from epochline.protocol.staging import StagedTable, StagingTicket
from epochline.protocol.staging_tables import staged_external, staged_tables


def _attempt(row: Row[Any]) -> Attempt:
    state = AttemptState.RUNNING
    if row.failed_at is not None and (row.fenced_at is not None or row.sealed_at is None):
        state = AttemptState.FAILED
    elif row.fenced_at is not None:
        state = AttemptState.FENCED
    elif row.ended_at is not None:
        state = AttemptState.COMMITTED
    elif row.sealed_at is not None:
        state = AttemptState.SEALED
    return Attempt(
        attempt_id=row.attempt_id,
        pipeline=row.pipeline,
        epoch_id=row.epoch_id,
        number=row.attempt,
        token=str(row.token),
        state=state,
        sealed=row.sealed_at is not None,
        fenced=row.fenced_at is not None,
        ended=row.job_ended_at is not None,
        error=row.error,
        error_class=row.error_class,
        error_command=row.error_command,
        generation=row.generation,
    )


class PostgresAttempts:
    """Attempts in the ledger's tables, staging tables in ``epochline_staging``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(
        self, epoch: Epoch, run: Run, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]
    ) -> StagingTicket:
        number = epoch.attempt + 1
        row = execute(
            self._connection, "insert_attempt",
            pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, attempt=number, dag_id=run.dag_id, run_id=run.run_id,
            host=run.host,
        ).one()  # fmt: skip
        execute(
            self._connection, "count_attempt",
            pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, attempt=number, host=run.host,
        )  # fmt: skip
        ticket = self.ticket(_attempt(row), pipeline, targets)
        writer = execute(self._connection, "writer_may_stage").scalar_one()
        for staged in ticket.tables:
            self._create(staged)
            self._give(staged, writer=writer)
            execute(
                self._connection, "register_staging",
                attempt_id=ticket.attempt_id, sink=staged.sink, table_name=staged.table,
            )  # fmt: skip
        return ticket

    def _create(self, staged: StagedTable) -> None:
        collations = collations_of(self._connection, staged.sink)
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}{}").format(sql.Identifier(name), sql.SQL(kind), collations.get(name, sql.SQL("")))
            for name, kind in staged_types(staged.columns, table_shapes(self._connection, staged.sink)).items()
        )
        # Not UNLOGGED: sealed rows must survive a crash of the server (INV-6).
        execute_sql(
            self._connection,
            sql.SQL("CREATE TABLE epochline_staging.{} ({})").format(sql.Identifier(staged.table), columns),
        )

    def _give(self, staged: StagedTable, *, writer: bool) -> None:
        """Let the writer role insert into the table, and let every owner drop it. Does nothing without the roles."""
        table = sql.Identifier("epochline_staging", staged.table)
        if writer:
            execute_sql(self._connection, sql.SQL("GRANT INSERT ON {} TO {}").format(table, sql.Identifier(WRITER)))
        settle_table(self._connection, "epochline_staging", staged.table)

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
        row = execute(self._connection, "live_attempt", pipeline=epoch.pipeline, epoch_id=epoch.epoch_id).one_or_none()
        return None if row is None else _attempt(row)

    def committed_token(self, pipeline: str, epoch_id: int) -> str | None:
        found = execute(self._connection, "committed_token", pipeline=pipeline, epoch_id=epoch_id).scalar_one_or_none()
        return None if found is None else str(found)

    def lock_attempt(self, attempt: Attempt) -> Attempt:
        return _attempt(execute(self._connection, "lock_attempt", attempt_id=attempt.attempt_id).one())

    def fence(self, attempt: Attempt, reason: str) -> None:
        execute(self._connection, "fence_attempt", attempt_id=attempt.attempt_id, reason=reason)

    def note_error(self, attempt: Attempt, error: RecordedError) -> None:
        execute(
            self._connection, "note_attempt_error",
            attempt_id=attempt.attempt_id, error=str(error), error_class=error.error_class, command=error.command,
        )  # fmt: skip

    def seal(self, attempt: Attempt, rows_staged: int) -> None:
        execute(self._connection, "seal_attempt", attempt_id=attempt.attempt_id, rows_staged=rows_staged)

    def keep_refused(self, attempt: Attempt, rows: Sequence[RefusedRow]) -> None:
        execute(self._connection, "keep_refused_rows", attempt_id=attempt.attempt_id, **refused_values(rows))

    def finish(self, attempt: Attempt) -> None:
        execute(self._connection, "finish_attempt", attempt_id=attempt.attempt_id)

    def manifests(self, attempt: Attempt) -> Sequence[Manifest]:
        rows = execute(self._connection, "manifests", attempt_id=attempt.attempt_id)
        return [Manifest(sink=r.sink, write_id=str(r.write_id), parts=r.parts, rows=r.rows, body=r.body) for r in rows]

    def part_sums(self, attempt: Attempt) -> Sequence[PartSum]:
        rows = execute(self._connection, "part_sums", attempt_id=attempt.attempt_id)
        return [PartSum(sink=r.sink, write_id=str(r.write_id), parts=r.parts, rows=r.rows) for r in rows]

    def seen(self, attempt: Attempt) -> Mapping[tuple[str, int], PartitionCounts]:
        rows = execute(self._connection, "part_messages", attempt_id=attempt.attempt_id, sink=QUARANTINE)
        return add_up(counts_of(row.message) for row in rows)

    def parts(self, attempt: Attempt, sink: str) -> Sequence[WrittenPart]:
        rows = execute(self._connection, "part_messages", attempt_id=attempt.attempt_id, sink=sink)
        return [
            WrittenPart(number=row.spark_partition, rows=row.rows, message=row.message.get(EXTERNAL, {}))
            for row in rows
        ]

    def end_sessions(self, attempt: Attempt) -> int:
        ended = execute(
            self._connection, "end_sessions",
            attempt_id=attempt.attempt_id, host=socket.gethostname(),
        )  # fmt: skip
        return ended.rowcount

    def left_over(self, pipeline: str) -> Sequence[Attempt]:
        return [_attempt(row) for row in execute(self._connection, "left_over_attempts", pipeline=pipeline)]

    def unexplained(self) -> Sequence[str]:
        return [row.relname for row in execute(self._connection, "unexplained_staging")]

    def drop_staging(self, attempt: Attempt) -> None:
        for (table,) in execute(self._connection, "staging_tables", attempt_id=attempt.attempt_id).all():
            execute_sql(
                self._connection,
                sql.SQL("DROP TABLE IF EXISTS epochline_staging.{}").format(sql.Identifier(table)),
            )
        execute(self._connection, "staging_dropped", attempt_id=attempt.attempt_id)
