"""What the publisher of a topic reads from the ledger: the rows to send, and the epochs that a sink shows."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.declare.topic import Outbox, sending_order
from epochline.postgres.queries.composed import compose, driver, names
from epochline.postgres.queries.statements import run as execute

_AT_ONCE = 5_000
_GIVING_UP = timedelta(minutes=5)

OutboxRow = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None, str | None]
"""Key, value, headers, partition, topic; no topic if the sink has one topic only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The newest epoch that a sink shows according to the ledger."""

    epoch_id: int
    token: str


def last_shown(connection: Connection, pipeline: str, sink: str) -> Shown | None:
    """The newest epoch that a sink shows according to the ledger; None if the sink shows none."""
    row = execute(connection, "last_shown", pipeline=pipeline, sink=sink).one_or_none()
    return None if row is None else Shown(epoch_id=row.epoch_id, token=str(row.token))


def committed_as(connection: Connection, pipeline: str, sink: str, epoch_id: int, token: str) -> bool:
    """Whether this attempt of this epoch was committed for the sink according to the ledger."""
    where = {"pipeline": pipeline, "sink": sink, "epoch_id": epoch_id, "token": token}
    return bool(execute(connection, "committed_as", **where).scalar_one())


def shown_rate(connection: Connection, pipeline: str, sink: str) -> float | None:
    """Rows per second at which a sink showed its newest epochs; None if none was measured."""
    rate = execute(connection, "shown_rate", pipeline=pipeline, sink=sink).scalar_one()
    return None if rate is None else float(rate)


def rows_of(connection: Connection, outbox: Outbox, epoch_id: int) -> Iterator[OutboxRow]:
    """The rows of an epoch in the order of sending, fetched in batches."""
    statement = compose(
        "SELECT key, value, headers, partition, {topic} FROM {outbox} WHERE _epoch = {epoch} ORDER BY {order}",
        topic=None if outbox.topic.topic_column is None else "topic", outbox=sql.Identifier(*split_table(outbox.table)),
        epoch=epoch_id, order=names(sending_order(outbox)),
    )  # fmt: skip
    # Sending to Kafka takes long between two fetches and after the last one. This transaction locks no row.
    execute(connection, "limit_idle_time", milliseconds=_most_milliseconds(outbox))
    with driver(connection).cursor(name="epochline_outbox") as cursor:
        cursor.itersize = _AT_ONCE
        cursor.execute(statement)
        for key, value, headers, partition, name in cursor:
            yield _bytes(key), _bytes(value), _headers(headers), partition, name


def _most_milliseconds(outbox: Outbox) -> int:
    """The time-out of Kafka's transaction plus five minutes: librdkafka gives up a record after that time."""
    return int((outbox.topic.transaction_timeout + _GIVING_UP).total_seconds() * 1000)


def _bytes(value: memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)


def _headers(text: str | None) -> tuple[tuple[str, bytes | None], ...]:
    if not text:
        return ()
    return tuple((name, None if value is None else base64.b64decode(value)) for name, value in json.loads(text))
