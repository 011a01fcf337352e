"""A pipeline with one table on real PostgreSQL, and rows staged as Spark would, applied by the use cases."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Self

import psycopg2
import pytest
from psycopg2 import sql

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.coordinator import CommitResult, Plan
from epochline.declare.columns import DELETED
from epochline.declare.names import order_column
from epochline.postgres.ledger.job_session import transaction
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import EpochState
from epochline.protocol.staging import StagedTable, StagingTicket
from tests.contract.worlds import end_by_hand, seen_in
from tests.databases import query
from tests.driver import Driver, epoch_of
from tests.in_memory.kafka import FakeKafka

Row = dict[str, Any]
KV = {"k": "text", "v": "integer"}
LINEAGE = ", _topic text, _partition int, _offset bigint, _row int, _epoch bigint"
UPSERT: dict[str, Any] = {"mode": "upsert", "key": "k"}
ADD: dict[str, Any] = {"mode": "add", "key": "k", "measures": "v"}
IN_PUBLIC = "-c search_path=public"
"""Options of a session as a user's: the role is named as the ledger's schema, which would come first on its path."""


def kv(k: Any, v: Any, **more: Any) -> Row:
    return {"k": k, "v": v, **more}


def in_public(dsn: str) -> Any:
    return psycopg2.connect(dsn, options=IN_PUBLIC)


class Bench(Driver):
    """A pipeline with one sink, and a hand that stages given rows, one record each.

    A row may say ``_partition`` (0 otherwise) and, for an upsert, ``_deleted``.
    """

    def __init__(self, dsn: str, sink: PostgresTable, record: dict[str, str], *, create: bool = True) -> None:
        self.dsn = dsn
        self.source = self.kafka = FakeKafka()
        self.ledger = PostgresLedger(dsn, lock_timeout=2)
        self.sink = sink
        source, parse = KafkaSource(topics="orders"), Json(columns=record)
        self.pipeline = Pipeline(name="orders", source=source, parse=parse, sinks=[sink])
        self.runs = 0
        for partition in (0, 1):
            self.kafka.produce("orders", partition, 0)
        if create:
            with self.ledger.transaction() as tx:
                self.made = tx.targets.create(self.pipeline)

    def sql(self, statement: str | sql.Composable, values: tuple[Any, ...] | None = None) -> Any:
        with closing(in_public(self.dsn)) as session, session, session.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    def plan(self, *rows: Row) -> Plan:  # type: ignore[override]
        self.runs += 1
        for row in rows:
            self.kafka.produce("orders", row.get("_partition", 0), 1)
        return super().plan(f"run-{self.runs}")

    def stage(self, planned: Plan, *rows: Row) -> StagingTicket:  # type: ignore[override]
        ticket = self.attempt(planned, epoch_of(planned).run)
        staged = ticket.table(self.sink.table)
        nexts = {one.tp.partition: one.range.start for one in planned.ranges}
        seen = {("orders", one.tp.partition): seen_in(one) for one in planned.ranges}
        with transaction(self.dsn, ticket.application_name) as session, session.cursor() as cursor:
            for row in rows:
                partition = row.get("_partition", 0)
                self._insert(cursor, staged, row, partition, nexts[partition])
                nexts[partition] += 1
            end_by_hand(cursor, ticket, {staged.sink: len(rows)}, seen)
        return ticket

    def _insert(self, cursor: Any, staged: StagedTable, row: Row, partition: int, offset: int) -> None:
        own = {"_topic": "orders", "_partition": partition, "_offset": offset, "_row": 0, DELETED: False}
        orders = {order_column(name): row[name] for name in self.sink.order_by}
        given = {**own, **orders, **row}
        values = {name: given[name] for name in staged.columns if name in given}
        # Literals, because a column may have a % in its name.
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier("epochline_staging", staged.table),
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(map(sql.Literal, values.values())),
        )
        cursor.execute(statement)

    def seal_staged(self, planned: Plan, *rows: Row) -> Plan:
        self.seal(self.stage(planned, *rows), epoch_of(planned).run)
        return planned

    def sealed(self, *rows: Row) -> Plan:
        return self.seal_staged(self.plan(*rows), *rows)

    def commit_staged(self, planned: Plan, *rows: Row) -> CommitResult:
        return self.commit(self.seal_staged(planned, *rows))

    def epoch(self, *rows: Row) -> CommitResult:
        return self.commit(self.sealed(*rows))

    def after(self, *epochs: Sequence[Row]) -> Self:
        """Commit epochs of these rows; gives itself."""
        for rows in epochs:
            self.epoch(*rows)
        return self

    def state(self, planned: Plan) -> EpochState:
        with self.ledger.transaction() as tx:
            return tx.epochs.lock("orders", epoch_of(planned).epoch_id).state

    def rows(self, columns: str = "k, v") -> list[tuple[Any, ...]]:
        return self.sql(f"SELECT {columns} FROM t ORDER BY 1, 2")  # type: ignore[no-any-return]


NewBench = Callable[..., Bench]
"""Makes a pipeline into a table ``t``; the options are those of `PostgresTable`."""


@pytest.fixture
def bench(postgres_dsn: str) -> NewBench:
    def make(record: dict[str, str] = KV, *, existing: str | None = None, **sink: Any) -> Bench:
        if existing is not None:
            query(postgres_dsn, existing, options=IN_PUBLIC)
        fields = {"table": "t", "columns": None if existing is not None else record}
        return Bench(postgres_dsn, PostgresTable(**{**fields, **sink}), record)

    return make
