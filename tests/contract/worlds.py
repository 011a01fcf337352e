"""One world per adapter: a ledger, a Kafka in memory, and a writer that stages rows as Spark would."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import connection

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.coordinator import Plan, PlanPreview
from epochline.declare.names import QUARANTINE
from epochline.ports import Ledger
from epochline.postgres.ledger.job_session import connect
from epochline.postgres.ledger.parts import Part, end_job, insert_manifest, insert_parts, message_of
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.staging import StagingTicket
from tests.databases import query
from tests.driver import Driver
from tests.in_memory.kafka import FakeKafka
from tests.in_memory.ledger import FakeLedger

OLDEST, NEWEST = datetime(2026, 3, 1, 12, tzinfo=UTC), datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
"""Kafka's timestamps of the oldest and the newest record of every range."""
WRITE_ID = "0198a8f0-0000-7000-8000-000000000001"


def run(name: str = "run-1") -> Run:
    return Run(dag_id="orders", run_id=name, host="here")


def orders(**changes: Any) -> Pipeline:
    fields: dict[str, Any] = {
        "name": "orders",
        "source": KafkaSource(topics="orders"),
        "parse": Text(),
        "sinks": [PostgresTable(table="orders", columns={"value": "text"})],
        "bad_records": "quarantine",
    }
    return Pipeline(**{**fields, **changes})


def ranges(planned: Plan | PlanPreview) -> list[str]:
    return [str(one) for one in planned.ranges]


def rows_of(planned: PlannedRange) -> list[dict[str, Any]]:
    tp = planned.tp
    return [
        {"value": f"{tp}@{at}", "_topic": tp.topic, "_partition": tp.partition, "_offset": at, "_row": 0}
        for at in range(planned.range.start, planned.range.until)
    ]


def seen_in(
    planned: PlannedRange, *, received: int | None = None, passed: int | None = None, quarantined: int = 0
) -> PartitionCounts:
    """What a part of the whole range counts; each record was received and passed if nothing else is given."""
    every = len(planned.range)
    return PartitionCounts(
        received=every if received is None else received, passed=every if passed is None else passed, skipped=0,
        quarantined=quarantined, first_offset=planned.range.start, last_offset=planned.range.until - 1, digest=1,
        oldest_timestamp=OLDEST, newest_timestamp=NEWEST,
    )  # fmt: skip


def end_by_hand(
    cursor: Any,
    ticket: StagingTicket,
    rows: Mapping[str, int],
    seen: Mapping[tuple[str, int], PartitionCounts],
    *end: Any,
) -> None:
    """Write down the only part of an attempt, its manifest and the end mark, as a job does.

    Args:
        cursor: of the transaction that staged the rows.
        ticket: of the attempt.
        rows: number by sink.
        seen: what the part counts.
        end: the job's watermark and what goes with it.
    """
    counts = {**rows, QUARANTINE: 0}
    messages = {QUARANTINE: message_of(seen)}
    parts = [Part(sink=name, rows=count, message=messages.get(name, {})) for name, count in counts.items()]
    assert insert_parts(cursor, ticket.attempt_id, WRITE_ID, 0, parts)
    assert insert_manifest(cursor, ticket.attempt_id, WRITE_ID, 1, counts)
    assert end_job(cursor, ticket.attempt_id, *end)


Rows = Mapping[str, list[dict[str, Any]]]
Seen = Mapping[tuple[str, int], PartitionCounts]


class Writer(Protocol):
    def part(self, ticket: StagingTicket, number: int, rows: Rows, seen: Seen) -> bool: ...

    def end(self, ticket: StagingTicket) -> bool: ...


@dataclass
class World(Driver):
    ledger: Ledger
    writer: Writer
    visible: Callable[[], list[tuple[str, int, int, int]]]
    quarantined: Callable[[], int]
    let_pass: Callable[[float], None]
    """Seconds pass in the ledger, without waiting."""
    source: FakeKafka = field(default_factory=FakeKafka)
    pipeline: Pipeline = field(default_factory=orders)
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.let_pass(seconds)

    @property
    def kafka(self) -> FakeKafka:
        return self.source

    def write(
        self, ticket: StagingTicket, one: PlannedRange, number: int = 0, rows: Rows | None = None, **counted: Any
    ) -> bool:
        """Stage every record of a range, or ``rows``, as one part of `seen_in`; False if the attempt is not live."""
        seen = {(one.tp.topic, one.tp.partition): seen_in(one, **counted)}
        return self.writer.part(ticket, number, {"orders": rows_of(one)} if rows is None else rows, seen)

    def stage(self, planned: Plan, ticket: StagingTicket) -> None:
        for number, one in enumerate(planned.ranges):
            assert self.write(ticket, one, number)
        assert self.writer.end(ticket)

    def finish(self, planned: Plan, who: str = "run-1") -> Plan:
        self.pre_commit(planned, who)
        self.commit(planned)
        return planned

    def heads(self) -> dict[int, int]:
        with self.ledger.transaction() as tx:
            return {head.tp.partition: head.next_offset for head in tx.chain.heads("orders", 1)}

    def epoch(self, epoch_id: int) -> Epoch:
        with self.ledger.transaction() as tx:
            return tx.epochs.lock("orders", epoch_id)

    def live(self) -> Attempt:
        with self.ledger.transaction() as tx:
            attempt = tx.attempts.live(tx.epochs.lock("orders", 1))
        assert attempt is not None
        return attempt

    def left_over(self) -> int:
        with self.ledger.transaction() as tx:
            return len(tx.attempts.left_over("orders"))


class FakeWriter:
    def __init__(self, ledger: FakeLedger) -> None:
        self._ledger = ledger

    def part(self, ticket: StagingTicket, number: int, rows: Rows, seen: Seen) -> bool:
        with self._ledger.transaction() as tx:
            return tx.job.write_part(ticket, rows, seen)

    def end(self, ticket: StagingTicket) -> bool:
        with self._ledger.transaction() as tx:
            tx.job.end(ticket)
        return True


class PostgresWriter:
    """Writes as Spark's writer does, by the same statements, without Spark."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._written: dict[int, list[list[Part]]] = {}

    def part(self, ticket: StagingTicket, number: int, rows: Rows, seen: Seen) -> bool:
        try:
            with self._session(ticket) as session, session, session.cursor() as cursor:
                parts = []
                for staged in ticket.tables:
                    new = rows.get(staged.sink, [])
                    for row in new:
                        cursor.execute(
                            sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                                sql.Identifier("epochline_staging", staged.table),
                                sql.SQL(", ").join(map(sql.Identifier, row)),
                                sql.SQL(", ").join([sql.Placeholder()] * len(row)),
                            ),
                            list(row.values()),
                        )
                    message = message_of(seen) if staged.sink == QUARANTINE else {}
                    parts.append(Part(sink=staged.sink, rows=len(new), message=message))
                if not insert_parts(cursor, ticket.attempt_id, WRITE_ID, number, parts):
                    session.rollback()
                    return False
        except psycopg2.errors.UndefinedTable:  # Its staging was dropped: it was fenced.
            return False
        self._written.setdefault(ticket.attempt_id, []).append(parts)
        return True

    def end(self, ticket: StagingTicket) -> bool:
        written = self._written.get(ticket.attempt_id, [])
        rows = {staged.sink: 0 for staged in ticket.tables}
        for part in itertools.chain.from_iterable(written):
            rows[part.sink] += part.rows
        with self._session(ticket) as session, session, session.cursor() as cursor:
            return insert_manifest(cursor, ticket.attempt_id, WRITE_ID, len(written), rows) and end_job(
                cursor, ticket.attempt_id
            )

    def _session(self, ticket: StagingTicket) -> closing[connection]:
        return closing(connect(self._dsn, ticket.application_name))


def fake_world() -> World:
    ledger = FakeLedger()

    def let_pass(seconds: float) -> None:
        now = ledger.now
        ledger.now = lambda: now() + timedelta(seconds=seconds)

    world = World(
        ledger=ledger,
        writer=FakeWriter(ledger),
        visible=lambda: sorted(
            (row["_topic"], row["_partition"], row["_offset"], row["_epoch"]) for row in ledger.rows.targets["orders"]
        ),
        quarantined=lambda: len(ledger.rows.quarantine),
        let_pass=let_pass,
    )
    return _with_target(world)


def postgres_world(dsn: str) -> World:

    def let_pass(seconds: float) -> None:
        """What has happened is moved back."""
        ago = f"make_interval(secs => {seconds})"
        query(dsn, f"UPDATE epochline.epoch SET planned_at = planned_at - {ago}, committed_at = committed_at - {ago}")
        query(dsn, f"UPDATE epochline.epoch SET lease_until = lease_until - {ago}")
        query(dsn, f"UPDATE epochline.attempt SET ended_at = ended_at - {ago}")

    world = World(
        ledger=PostgresLedger(dsn, lock_timeout=2),
        writer=PostgresWriter(dsn),
        visible=lambda: sorted(query(dsn, "SELECT _topic, _partition, _offset, _epoch FROM orders")),
        quarantined=lambda: query(dsn, "SELECT count(*) FROM epochline.quarantine")[0][0],
        let_pass=let_pass,
    )
    return _with_target(world)


def _with_target(world: World) -> World:
    world.create()
    world.kafka.produce("orders", 0, 10)
    world.kafka.produce("orders", 1, 5)
    return world


def quarantined(world: World) -> None:
    """Epoch 1 with offsets 2 and 3 of partition 0 in the quarantine, the other 13 records in the target."""
    planned, ticket = world.to_begun()
    for number, one in enumerate(planned.ranges):
        bad = [2, 3] if one.tp.partition == 0 else []
        rows = {"orders": [row for row in rows_of(one) if row["_offset"] not in bad]}
        rows[QUARANTINE] = [bad_record(offset, f"not JSON at {offset}") for offset in bad]
        assert world.write(ticket, one, number, rows, passed=len(one.range) - len(bad), quarantined=len(bad))
    assert world.writer.end(ticket)
    world.seal(ticket)
    world.commit(1)
    assert world.quarantined() == 2


def aborted(world: World, number: int, reason: str = "a test says so", **options: Any) -> None:
    """The epoch of this number, begun by the run of this number and aborted."""
    world.to_begun(f"run-{number}", **options)
    world.abort(number, f"run-{number}", reason=reason)


def bad_record(offset: int, reason: str) -> dict[str, Any]:
    return {"topic": "orders", "partition": 0, "offset": offset, "value": b"x", "reason": reason}
