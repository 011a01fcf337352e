"""Attempts and their staging tables: the adapter behind `epochline.ports.Attempts`."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from psycopg2 import sql

from epochline.declare.names import QUARANTINE, WRITER
from epochline.declare.pipeline import Pipeline
from epochline.ports import Manifest, PartSum
from epochline.postgres.ledger import rows as of
from epochline.postgres.ledger.parts import EXTERNAL, counts_of, refused_values
from epochline.postgres.ledger.rows import key_of
from epochline.postgres.queries.composed import change, compose, joined
from epochline.postgres.queries.ownership import settle_table
from epochline.postgres.queries.statements import InTransaction
from epochline.postgres.targets.columns import columns_of, staged_types
from epochline.protocol.balances import PartitionCounts, add_up
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.failures import RecordedError
from epochline.protocol.refused import RefusedRow
from epochline.protocol.sink import WrittenPart
from epochline.protocol.staging import StagedTable, StagingTicket
from epochline.protocol.staging_tables import staged_external, staged_tables


class PostgresAttempts(InTransaction):
    """Attempts in the ledger's tables, staging tables in ``epochline_staging``."""

    def begin(
        self, epoch: Epoch, run: Run, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]
    ) -> StagingTicket:
        values = {**key_of(epoch), "attempt": epoch.attempt + 1, **asdict(run)}
        row = self._run("insert_attempt", **values).one()
        self._run("count_attempt", **values)
        ticket = self.ticket(of.attempt(row), pipeline, targets)
        writer = self._run("writer_may_stage").scalar_one()
        for staged in ticket.tables:
            self._create(staged)
            self._give(staged, writer=writer)
            self._run("register_staging", attempt_id=ticket.attempt_id, sink=staged.sink, table_name=staged.table)
        return ticket

    def _create(self, staged: StagedTable) -> None:
        target, nothing = columns_of(self._connection, staged.sink), sql.SQL("")
        columns = joined(
            compose(
                "{name} {kind}{collate}",
                name=name, kind=sql.SQL(kind), collate=target[name].collate if name in target else nothing,
            )
            for name, kind in staged_types(staged.columns, target).items()
        )  # fmt: skip
        # Not UNLOGGED: sealed rows must survive a crash of the server (INV-6).
        create = "CREATE TABLE epochline_staging.{table} ({columns})"
        change(self._connection, create, table=staged.table, columns=columns)

    def _give(self, staged: StagedTable, *, writer: bool) -> None:
        """Let the writer role insert into the table, and let every owner drop it. Does nothing without the roles."""
        if writer:
            grant = "GRANT INSERT ON epochline_staging.{table} TO {writer}"
            change(self._connection, grant, table=staged.table, writer=WRITER)
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
        rows = self._run("manifests", attempt_id=attempt.attempt_id)
        return [Manifest(sink=r.sink, write_id=str(r.write_id), parts=r.parts, rows=r.rows, body=r.body) for r in rows]

    def part_sums(self, attempt: Attempt) -> Sequence[PartSum]:
        rows = self._run("part_sums", attempt_id=attempt.attempt_id)
        return [PartSum(sink=r.sink, write_id=str(r.write_id), parts=r.parts, rows=r.rows) for r in rows]

    def seen(self, attempt: Attempt) -> Mapping[tuple[str, int], PartitionCounts]:
        rows = self._run("part_messages", attempt_id=attempt.attempt_id, sink=QUARANTINE)
        return add_up(counts_of(row.message) for row in rows)

    def parts(self, attempt: Attempt, sink: str) -> Sequence[WrittenPart]:
        rows = self._run("part_messages", attempt_id=attempt.attempt_id, sink=sink)
        return [WrittenPart(number=r.spark_partition, rows=r.rows, message=r.message.get(EXTERNAL, {})) for r in rows]

    def end_sessions(self, attempt: Attempt) -> int:
        return self._run("end_sessions", attempt_id=attempt.attempt_id, host=socket.gethostname()).rowcount

    def left_over(self, pipeline: str) -> Sequence[Attempt]:
        return [of.attempt(row) for row in self._run("left_over_attempts", pipeline=pipeline)]

    def unexplained(self) -> Sequence[str]:
        return [row.relname for row in self._run("unexplained_staging")]

    def drop_staging(self, attempt: Attempt) -> None:
        for (table,) in self._run("staging_tables", attempt_id=attempt.attempt_id).all():
            change(self._connection, "DROP TABLE IF EXISTS epochline_staging.{table}", table=table)
        self._run("staging_dropped", attempt_id=attempt.attempt_id)
