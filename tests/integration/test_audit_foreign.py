"""`epochline audit --declaration`: tables that a program of another's wrote from a topic, on real PostgreSQL and Kafka.

A naive writer reads the topic with at-least-once delivery, as Kafka Connect, Spark's JDBC writer or a script do: it
inserts a batch, dies before it commits its offsets, and inserts the batch again; it also drops and alters records.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.commands import Call
from tests.integration.kafka_topics import delete_records, make_topic, produce

T0 = 1_772_323_200_000  # 2026-03-01T00:00:00Z
FROM, UNTIL = ("--from", "2026-03-01T00:00:00Z"), ("--until", "2026-03-01T01:00:00Z")
COLUMNS = '{"id": "bigint", "name": "text", "price": "numeric", "seen": "timestamptz", "extra": "jsonb"}'
TABLE = "id bigint, name text, price numeric(12, 4), seen timestamptz, extra json"
DECLARED = """
from epochline import Json, KafkaSource, Pipeline, PostgresTable

columns = {columns}
theirs = Pipeline(
    name="theirs",
    source=KafkaSource(topics="{topic}"),
    parse=Json(columns=columns),
    sinks=[PostgresTable(table="orders", columns=columns, {table})],
)
"""
BY_KEY = 'key="id", repeats="refuse", lineage=False'
PLACES = ("--lineage", "topic=src", "--lineage", "partition=part", "--lineage", "offset=off%set")
EXACT = {"missing": 0, "doubled": 0, "extra": 0, "changed": 0}


def order(number: int | None, **changes: Any) -> bytes:
    fields = {"id": number, "name": f"näme {number}", "price": "1.50", "seen": "2024-02-29T01:02:03Z", "extra": {"b": 1}}
    return json.dumps({**fields, **changes}).encode()


@dataclass
class Theirs:
    """A topic of two partitions, a table of another program, and the command."""

    dsn: str
    bootstrap: str
    topic: str
    call: Call
    folder: Path

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def produce(self, partition: int, *values: bytes | None, minute: int = 0, **more: Any) -> None:
        produce(self.bootstrap, self.topic, values, partition=partition, timestamp_ms=T0 + minute * 60_000, **more)

    def records(self) -> Iterator[Any]:
        with closing(KafkaConsumer(bootstrap_servers=self.bootstrap, enable_auto_commit=False)) as consumer:
            for partition in (0, 1):
                place = TopicPartition(self.topic, partition)
                consumer.assign([place])
                consumer.seek_to_beginning(place)
                end = consumer.end_offsets([place])[place]
                while consumer.position(place) < end:
                    for batch in consumer.poll(1000).values():
                        yield from batch

    def write(self, *doubled: tuple[int, int], on_conflict: str = "") -> None:
        """The naive writer: every record is a row, and those of some places are written again after a "restart"."""
        for record in self.records():
            if record.value is None:
                continue
            fields = json.loads(record.value)
            values = [json.dumps(v) if isinstance(v, dict) else v for v in fields.values()]
            for _ in range(1 + doubled.count((record.partition, record.offset))):
                self.sql(
                    f'INSERT INTO orders (id, name, price, seen, extra, src, part, "off%%set")'
                    f" VALUES (%s, %s, %s, %s, %s, %s, %s, %s) {on_conflict}",
                    *values, record.topic, record.partition, record.offset,
                )  # fmt: skip

    def audit(self, table: str, *more: object, code: int) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
        """What differs as (kind, partition, offset, number, columns), and what was said of the table."""
        file = self.folder / "not_a_dag.py"
        file.write_text(DECLARED.format(columns=COLUMNS, topic=self.topic, table=table))
        found, out, err = self.call("audit", "--declaration", file, *FROM, *UNTIL, "--json", *more)
        assert (found, err) == (code, ""), out + err
        lines = [json.loads(line) for line in out.splitlines()]
        keys = ("kind", "partition", "offset", "number", "columns")
        differences = [tuple(line["difference"][key] for key in keys) for line in lines if "difference" in line]
        (said,) = [line["table"] for line in lines if "table" in line]
        said["not_judged"] += [line["not_judged"] for line in lines if "not_judged" in line]
        return differences, said


@pytest.fixture
def theirs(on_servers: Call, new_database: Callable[[], str], kafka_bootstrap: str, topic_name: str,
           tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Theirs:  # fmt: skip
    """Without any ledger: a database of its own, whose login may only read the table."""
    from tests.commands import connect_to

    dsn = new_database()
    connect_to(monkeypatch, postgres=dsn, kafka=kafka_bootstrap)
    make_topic(kafka_bootstrap, topic_name, 2)
    one = Theirs(dsn, kafka_bootstrap, topic_name, on_servers, tmp_path)
    one.sql(f'CREATE TABLE orders ({TABLE}, src text, part integer, "off%set" numeric)')
    return one


@pytest.mark.parametrize("by", ["place", "key"])
def test_missing_doubled_and_changed_rows_of_a_naive_writer_are_told_exactly(theirs: Theirs, by: str) -> None:
    """At-least-once delivery doubles rows; a filter loses some; an update changes one. Equal rows are told apart."""
    declared, lineage = ("", PLACES) if by == "place" else (BY_KEY, ())
    theirs.produce(0, *(order(n) for n in range(40)))
    theirs.produce(1, *(order(n) for n in range(100, 120)), order(7, name="a second record of a key"))
    theirs.write()
    assert theirs.audit(declared, *lineage, code=0) == ([], {**theirs.audit(declared, *lineage, code=0)[1], "totals": EXACT})
    theirs.sql("TRUNCATE orders")
    theirs.write((0, 3), (0, 4), (1, 5), (1, 5))
    theirs.sql("DELETE FROM orders WHERE id IN (10, 111)")
    theirs.sql("UPDATE orders SET name = 'Eve', price = 1.51 WHERE id = 12")
    theirs.sql("UPDATE orders SET name = 'Eve' WHERE id = 4")

    differences, said = theirs.audit(declared, *lineage, code=1)

    assert differences == [
        ("doubled", 0, 3, 1, []), ("changed", 0, 4, 1, ["name"]), ("doubled", 0, 4, 1, []), ("missing", 0, 10, 1, []),
        ("changed", 0, 12, 1, ["name", "price"]), ("doubled", 1, 5, 2, []), ("missing", 1, 11, 1, []),
    ]  # fmt: skip
    assert said["totals"] == {"missing": 2, "doubled": 4, "extra": 0, "changed": 2}
    assert said["differences"] == 8
