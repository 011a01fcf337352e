"""Common code of the three programs: a topic with one partition, a table of rows, a table with the next offset."""

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Literal

from psycopg2.extensions import connection as Connection  # noqa: N812

CrashPoint = Literal["begin", "middle", "end", "never"]
CRASH_POINTS: tuple[CrashPoint, ...] = ("begin", "middle", "end", "never")

KILLED = 137


class Step:
    """One step of a program: read from the recorded offset of a topic with one partition, write rows, record the next.

    The process ends at once, as if killed, at the point ``crash_at``.
    """

    def __init__(self, connection: Connection, bootstrap_servers: str, topic: str, crash_at: CrashPoint) -> None:
        self._connection = connection
        self._crash_at = crash_at
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS example_row (value text NOT NULL)")
            cursor.execute("CREATE TABLE IF NOT EXISTS example_offset (next_offset bigint NOT NULL)")
            cursor.execute("SELECT max(next_offset) FROM example_offset")
            [(noted,)] = cursor.fetchall()
        self.values, self._next = read(bootstrap_servers, topic, noted or 0)

    def write_rows(self) -> None:
        """Write the rows in the open transaction."""
        with self._connection.cursor() as cursor:
            cursor.executemany("INSERT INTO example_row (value) VALUES (%s)", [(value,) for value in self.values])

    def note_offset(self) -> None:
        """Record the next offset in the open transaction."""
        with self._connection.cursor() as cursor:
            cursor.execute("DELETE FROM example_offset")
            cursor.execute("INSERT INTO example_offset (next_offset) VALUES (%s)", (self._next,))

    def commit(self) -> None:
        """Commit the open transaction."""
        self._connection.commit()

    def maybe_crash(self, point: CrashPoint) -> None:
        """End this process if ``crash_at`` is this point."""
        if point == self._crash_at:
            os._exit(KILLED)


def read(bootstrap_servers: str, topic: str, start: int, number: int = 0) -> tuple[list[str], int]:
    """Read the committed values of a partition from an offset on; return them with the next offset."""
    from kafka import KafkaConsumer, TopicPartition

    partition = TopicPartition(topic, number)
    settings = {"bootstrap_servers": bootstrap_servers, "isolation_level": "read_committed"}
    with closing(KafkaConsumer(enable_auto_commit=False, **settings)) as consumer:
        consumer.assign([partition])
        until = consumer.end_offsets([partition])[partition]
        consumer.seek(partition, start)
        values: list[str] = []
        while consumer.position(partition) < until:
            for records in consumer.poll(timeout_ms=1000).values():
                values += [record.value.decode() for record in records if record.offset < until]
        return values, until


def run(program: Callable[[Step], None], description: str | None, arguments: Sequence[str] | None = None) -> None:
    """Run one step. The variables PGHOST, PGUSER and so on name the database."""
    import psycopg2

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bootstrap-servers", required=True, help="Kafka's host:port")
    parser.add_argument("--topic", required=True, help="a topic with one partition")
    parser.add_argument("--crash-at", choices=CRASH_POINTS, default="never", help="point at which this process ends")
    options = parser.parse_args(arguments)
    with closing(psycopg2.connect("")) as connection:
        program(Step(connection, options.bootstrap_servers, options.topic, options.crash_at))
