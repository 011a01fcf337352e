"""Receipts, and what the publisher of a topic reads: the adapter behind `epochline.ports.Receipts`, and the outbox."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from psycopg2 import sql

from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.topic import Outbox, headers_of, sending_order
from epochline.ports import Accepted, AnnouncedReceipt, DueReceipt, Upserted
from epochline.postgres.ledger.rows import committable, key_of
from epochline.postgres.queries.statements import Connection, InTransaction, change, compose, names, run
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.mirror import LastMirror
from epochline.protocol.sink import Committable, ShownEpoch

ANNOUNCED_AT_ONCE = 100
"""Most receipts that one task announces. The next task announces the rest."""


class PostgresReceipts(InTransaction):
    """Receipts in a table of the ledger, one per committed epoch and sink."""

    def keep_sealed(self, attempt: Attempt, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        for sink, body in bodies.items():
            self._run("keep_sealed", attempt_id=attempt.attempt_id, sink=sink, body=json.dumps(body))

    def write(
        self, epoch: Epoch, attempt: Attempt, pipeline: Pipeline, upserted: Mapping[str, Upserted],
        shown_before: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        for output in pipeline.outputs:
            if output.name in shown_before:
                continue
            done = upserted.get(output.name)
            counts = dict.fromkeys(Upserted.__slots__) if done is None else asdict(done)
            receipt = {"sink": output.name, "manifest": output.staged_as, "shown": output.shown_at_commit, **counts}
            self._run("write_receipt", **key_of(epoch), attempt_id=attempt.attempt_id, **receipt)

    def received(self, pipeline: str, epoch_id: int) -> frozenset[str]:
        rows = self._run("receipts_of_epoch", pipeline=pipeline, epoch_id=epoch_id)
        return frozenset(row.sink for row in rows)

    def knows(self, pipeline: str, token: str) -> bool:
        return bool(self._run("knows_token", pipeline=pipeline, token=token).scalar_one())

    def accept(self, pipeline: str, shown_by: str, shown: ShownEpoch) -> None:
        reached = None if shown.reached is None else json.dumps(shown.reached)
        values = {"generation": shown.generation, "epoch_id": shown.epoch_id, "token": shown.token, "reached": reached}
        self._run("accept_epoch", pipeline=pipeline, shown_by=shown_by, **values)

    def accepted(self, pipeline: str) -> Sequence[Accepted]:
        rows = [dict(row) for row in self._run("accepted_epochs", pipeline=pipeline).mappings()]
        return [Accepted(shown_by=row.pop("shown_by"), shown=ShownEpoch(**row)) for row in rows]

    def begin_mirror(self, pipeline: str, generation: int, epoch_id: int, topics: Sequence[str]) -> int:
        values = {"generation": generation, "epoch_id": epoch_id, "topics": list(topics)}
        return int(self._run("begin_mirror", pipeline=pipeline, **values).scalar_one())

    def confirm_mirror(self, pipeline: str, number: int) -> None:
        self._run("confirm_mirror", pipeline=pipeline, number=number)
        self._run("delete_replaced_mirrors", pipeline=pipeline)

    def last_mirror(self, pipeline: str) -> LastMirror | None:
        row = self._run("last_mirror", pipeline=pipeline).one_or_none()
        return None if row is None else LastMirror(**row._asdict())

    def forget_mirrors(self, pipeline: str, topic: str | None = None) -> None:
        if topic is None:
            self._run("forget_mirrors", pipeline=pipeline)
        else:
            self._run("forget_mirrors_of_topic", pipeline=pipeline, topic=topic)

    def due(self, pipeline: str) -> Sequence[DueReceipt]:
        due = []
        for row in self._run("due_receipts", pipeline=pipeline):
            of_sink = {"epoch_id": row.epoch_id, "sink": row.sink, "tried": row.tried}
            due.append(DueReceipt(pipeline=pipeline, committable=committable(pipeline, row), **of_sink))
        return due

    def unpublished(self, pipeline: str) -> Mapping[str, int]:
        return {row.sink: row.epochs for row in self._run("unpublished", pipeline=pipeline)}

    def last_shown(self, pipeline: str, sink: str) -> int | None:
        return last_shown(self._connection, pipeline, sink)

    def given_elsewhere(self, pipeline: str, sink: str, token: str, declared: Sequence[str]) -> tuple[str, int] | None:
        asked = {"pipeline": pipeline, "sink": sink, "token": token, "declared": list(declared)}
        row = self._run("given_elsewhere", **asked).one_or_none()
        return None if row is None else (row.sink, row.epoch_id)

    def try_to_show(self, receipt: DueReceipt) -> bool:
        return self._run("try_to_show", **key_of(receipt), sink=receipt.sink).rowcount == 1

    def shown(self, receipt: DueReceipt, seconds: float | None, outbox: str | None) -> bool:
        noted = self._run("mark_shown", **key_of(receipt), sink=receipt.sink, seconds=seconds).rowcount == 1
        if outbox is not None:
            table, sent = sql.Identifier(*split_table(outbox)), "DELETE FROM {table} WHERE _epoch = {epoch}"
            change(self._connection, sent, table=table, epoch=receipt.epoch_id)
        return noted

    def completed(self, pipeline: str, epoch_id: int) -> Mapping[str, Committable]:
        rows = self._run("receipts_of_epoch", pipeline=pipeline, epoch_id=epoch_id)
        return {row.sink: committable(pipeline, row) for row in rows} if all(row.shown for row in rows) else {}

    def unannounced(self, pipeline: str) -> Sequence[AnnouncedReceipt]:
        rows = self._run("unannounced_receipts", pipeline=pipeline, most=ANNOUNCED_AT_ONCE).mappings()
        return [AnnouncedReceipt(**row) for row in rows]

    def announce(self, pipeline: str, receipts: Sequence[AnnouncedReceipt], run: Run) -> None:
        for receipt in receipts:
            announced = {"epoch_id": receipt.epoch_id, "sink": receipt.sink, "run_id": run.run_id}
            self._run("announce_receipt", pipeline=pipeline, **announced)

    def acknowledge(self, pipeline: str, receipts: Sequence[AnnouncedReceipt]) -> None:
        for receipt in receipts:
            self._run("acknowledge_receipt", pipeline=pipeline, epoch_id=receipt.epoch_id, sink=receipt.sink)


_FETCHED_AT_ONCE = 5_000
_GIVING_UP = timedelta(minutes=5)
"""After this time beyond Kafka's transaction time-out, librdkafka gives up a record."""

OutboxRow = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None, str | None]
"""Key, value, headers, partition, topic; no topic if the sink has one topic only."""


def last_shown(connection: Connection, pipeline: str, sink: str) -> int | None:
    """The newest epoch that a sink shows according to the ledger; None if the sink shows none."""
    epoch_id: int | None = run(connection, "last_shown", pipeline=pipeline, sink=sink).scalar_one()
    return epoch_id


def committed_as(connection: Connection, pipeline: str, sink: str, epoch_id: int, token: str) -> bool:
    """Whether this attempt of this epoch was committed for the sink according to the ledger."""
    where = {"pipeline": pipeline, "sink": sink, "epoch_id": epoch_id, "token": token}
    return bool(run(connection, "committed_as", **where).scalar_one())


def shown_rate(connection: Connection, pipeline: str, sink: str) -> float | None:
    """Rows per second at which a sink showed its newest epochs; None if none was measured."""
    rate = run(connection, "shown_rate", pipeline=pipeline, sink=sink).scalar_one()
    return None if rate is None else float(rate)


def rows_of(connection: Connection, outbox: Outbox, epoch_id: int) -> Iterator[OutboxRow]:
    """The rows of an epoch in the order of sending, fetched in batches."""
    statement = compose(
        "SELECT key, value, headers, partition, {topic} FROM {outbox} WHERE _epoch = {epoch} ORDER BY {order}",
        topic=None if outbox.topic.topic_column is None else "topic", outbox=sql.Identifier(*split_table(outbox.table)),
        epoch=epoch_id, order=names(sending_order(outbox)),
    )  # fmt: skip
    # Sending to Kafka takes long between two fetches and after the last one. This transaction locks no row.
    idle = outbox.topic.transaction_timeout + _GIVING_UP
    run(connection, "limit_idle_time", milliseconds=int(idle.total_seconds() * 1000))
    with connection.cursor(name="epochline_outbox") as cursor:
        cursor.itersize = _FETCHED_AT_ONCE
        cursor.execute(statement)
        for key, value, headers, partition, name in cursor:
            yield _bytes(key), _bytes(value), headers_of(headers), partition, name


def _bytes(value: memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
