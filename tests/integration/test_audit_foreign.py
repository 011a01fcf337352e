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
from urllib.parse import urlsplit

import psycopg2
import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.commands import Call, connect_to
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
    fields = {
        "id": number,
        "name": f"näme {number}",
        "price": "1.50",
        "seen": "2024-02-29T01:02:03Z",
        "extra": {"b": 1},
    }
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
    assert theirs.audit(declared, *lineage, code=0) == (
        [],
        {**theirs.audit(declared, *lineage, code=0)[1], "totals": EXACT},
    )
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


def test_only_the_records_between_the_times_are_compared_and_what_straddles_is_said(theirs: Theirs) -> None:
    """The first record at `--from` or later begins, the first at `--until` or later ends; late ones are counted."""
    theirs.produce(0, order(0), minute=-5)
    theirs.produce(0, order(1), order(2), minute=5)
    theirs.produce(0, order(3), minute=-1)  # came late
    theirs.produce(0, order(4), minute=59)
    theirs.produce(0, order(5), minute=60)
    theirs.produce(0, order(6), minute=30)  # comes after the end
    theirs.sql('INSERT INTO orders (src, part, "off%set") VALUES (NULL, 0, 1)')

    differences, said = theirs.audit("", *PLACES, code=1)

    assert [one[:3] for one in differences] == [("missing", 0, offset) for offset in (1, 2, 3, 4)]
    assert said["not_judged"] == ["1 rows have no place: NULL in a column of it"]
    file = theirs.folder / "not_a_dag.py"
    out = theirs.call("audit", "--declaration", file, *FROM, *UNTIL, *PLACES)[1]
    assert f"{theirs.topic}-0 [1, 5): 4 records, 1 with a time before --from; 2 offsets after it not compared" in out
    assert "Eve" not in out


def test_rows_of_no_record_are_extra_where_the_table_holds_places(theirs: Theirs) -> None:
    """Also the row of a record that the declaration refuses, and of an offset that holds no record."""
    theirs.produce(0, order(1), order(2, price="no number"), order(3))
    theirs.sql(f"INSERT INTO orders SELECT n, 'näme ' || n, 1.5, '2024-02-29T01:02:03Z', '{{\"b\":1}}', '{theirs.topic}', 0,"
               " n - 1 FROM generate_series(1, 3) n")  # fmt: skip

    differences, said = theirs.audit("", *PLACES, code=1)

    assert (differences, said["refused"]) == ([("extra", 0, 1, 1, [])], 1)
    theirs.sql("DELETE FROM orders WHERE id = 2")
    assert theirs.audit("", *PLACES, code=0)[0] == []
    # By key, no row can be looked for of a record that gives none.
    assert theirs.audit(BY_KEY, code=3)[1]["not_judged"] == [
        "1 records give no key, because the declaration refuses them"
    ]


def test_what_records_outside_the_times_may_explain_is_not_judged_by_key(theirs: Theirs) -> None:
    """A row too many may be another record's with the same key; a row that is missing is missing."""
    theirs.produce(0, order(1), minute=-5)
    theirs.produce(0, order(1), order(2), order(3))
    theirs.produce(1, order(2, name="later"), minute=90)
    theirs.write()
    theirs.sql("DELETE FROM orders WHERE id = 3")

    differences, said = theirs.audit(BY_KEY, code=1)

    assert differences == [("missing", 0, 3, 1, [])]
    assert said["not_judged"] == ["2 keys: records before or after the time have them, too"]


def test_what_kafka_holds_no_more_is_said(theirs: Theirs) -> None:
    """The time begins before the log does; a row too many by key may be that of a record that is gone."""
    theirs.produce(0, order(1), order(1), order(2), order(None))
    theirs.write()
    delete_records(theirs.bootstrap, theirs.topic, {0: 1})

    differences, said = theirs.audit(BY_KEY, code=1)

    assert differences == [("doubled", 0, 1, 1, [])]
    gone = (
        f"{theirs.topic}-0: keys of records before offset 1 are unknown: a row that is doubled or changed may be of one"
    )
    assert said["not_judged"] == [
        "1 records give no key, because the declaration refuses them", f"{gone} of them",
        f"{theirs.topic}-0: not retained: records before offset 1 may be of the time",
    ]  # fmt: skip
    assert theirs.audit("", *PLACES, code=3)[1]["totals"] == EXACT


def test_a_login_that_may_only_read_the_table_is_enough_and_nothing_is_written(
    theirs: Theirs, login: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ledger, no rights but SELECT. Whatever reads the table is a read-only transaction: a view that writes fails."""
    theirs.produce(0, order(1), order(2))
    theirs.write((0, 1))
    reader = urlsplit(login())
    dsn = urlsplit(theirs.dsn)
    connect_to(monkeypatch, postgres=dsn._replace(netloc=reader.netloc).geturl(), kafka=theirs.bootstrap)
    file = theirs.folder / "not_a_dag.py"
    file.write_text(DECLARED.format(columns=COLUMNS, topic=theirs.topic, table=BY_KEY))
    assert "needs SELECT" in theirs.call.refusal("audit", "--declaration", file, *FROM, *UNTIL)
    theirs.sql(f"GRANT SELECT ON orders TO {reader.username}")

    assert theirs.audit(BY_KEY, code=1)[0] == [("doubled", 0, 1, 1, [])]
    theirs.sql("CREATE TABLE written (n int); CREATE FUNCTION writes() RETURNS text SECURITY DEFINER LANGUAGE sql VOLATILE"
               " AS 'INSERT INTO written VALUES (1) RETURNING NULL::text'; ALTER TABLE orders RENAME TO hidden;"
               "CREATE VIEW orders AS SELECT * FROM hidden WHERE writes() IS NULL;"
               f"GRANT SELECT ON orders TO {reader.username}")  # fmt: skip
    assert "read-only transaction" in theirs.call.refusal("audit", "--declaration", file, *FROM, *UNTIL)
    assert theirs.sql("SELECT count(*) FROM written") == [(0,)]
    theirs.sql("DROP VIEW orders; DROP TABLE hidden")  # and with them the grants


def test_the_last_state_of_each_key_is_what_an_upsert_table_should_have(theirs: Theirs) -> None:
    """A lost update, a deletion that was not made, a row that stands twice; a later record excuses what it changed."""
    theirs.produce(0, *(order(n) for n in range(6)), minute=-5, key=b"k")
    theirs.produce(0, *(order(n, name="new") for n in range(6)), order(9, name="new"))
    theirs.produce(0, order(5, name="newest"), order(0, name="newest"), minute=70)
    theirs.write()
    theirs.sql(
        'DELETE FROM orders o WHERE EXISTS (SELECT FROM orders n WHERE n.id = o.id AND n."off%set" > o."off%set")'
    )
    upsert = 'mode="upsert", key="id", lineage=False'

    assert theirs.audit(upsert, code=3) == ([], {**theirs.audit(upsert, code=3)[1], "totals": EXACT})
    theirs.sql("UPDATE orders SET name = 'näme 1' WHERE id = 1; INSERT INTO orders SELECT * FROM orders WHERE id = 2;"
               "DELETE FROM orders WHERE id IN (3, 5)")  # fmt: skip

    differences, said = theirs.audit(upsert, code=1)
    assert differences == [
        ("changed", 0, 7, 1, ["name"]), ("doubled", 0, 8, 1, []), ("missing", 0, 9, 1, []),
    ]  # fmt: skip
    assert said["not_judged"] == ["2 keys: records before or after the time have them, too"]


def test_what_does_not_fit_is_refused_by_name(theirs: Theirs) -> None:
    theirs.produce(0, order(1))
    file, audit = theirs.folder / "not_a_dag.py", ("audit", "--declaration")
    for table, more, said in (
        ("", (), "declare a key="), ("", ("--lineage", "offset=off%set"), "needs partition and offset"),
        ("", ("--lineage", "partition=part", "--lineage", "offset=nothing"), "has no column nothing"),
        ("", ("--lineage", "partition=part", "--lineage", "offset=name"), "cannot be compared by place"),
        ('mode="replace"', (), "depends on all records"),
        (BY_KEY.replace("id", "name") + ', select="nowhere:f"', (), "nowhere"),
    ):  # fmt: skip
        file.write_text(DECLARED.format(columns=COLUMNS, topic=theirs.topic, table=table))
        theirs.sql("INSERT INTO orders (name, part) VALUES ('no number', 0)")
        found, out, err = theirs.call(*audit, file, *FROM, *UNTIL, *more)
        assert (found in (1, 2), out, said in err) == (True, "", True), err
    assert theirs.call(*audit, file, *FROM)[0] == 2
    assert theirs.call(*audit, file, *UNTIL, "--from", "2026-03-01T02:00:00Z")[0] != 0
    assert "there is no file" in theirs.call(*audit, theirs.folder / "gone.py", *FROM, *UNTIL)[2]
    assert theirs.call("audit")[0] == 2
    file.write_text("x = 1")
    assert "has no variable that is a Pipeline" in theirs.call(*audit, file, *FROM, *UNTIL)[2]


def test_hostile_names_and_empty_tables_are_compared_like_others(theirs: Theirs) -> None:
    """A key of every column, names with quotes, percent signs and braces, a topic and a table without anything."""
    columns = {'say "%s" {0}': "text", "ключ": "bigint"}
    file = theirs.folder / "not_a_dag.py"
    file.write_text(
        DECLARED.format(columns=columns, topic=theirs.topic, table=f'key={tuple(columns)}, repeats="refuse"')
    )
    theirs.sql('DROP TABLE orders; CREATE TABLE orders ("say ""%s"" {0}" text, "ключ" numeric)')
    command = ("audit", "--declaration", file, *FROM, *UNTIL)
    assert theirs.call(*command)[0] == 0
    theirs.produce(0, *(json.dumps(dict(zip(columns, ("{x}", n), strict=True))).encode() for n in (1, 2, 2)))
    theirs.sql("""INSERT INTO orders VALUES ('{x}', 1.0), ('{x}', 1), ('{x}', 2)""")

    code, out, err = theirs.call(*command)

    assert (code, err) == (1, "")
    assert f"orders: doubled: {theirs.topic}-0 offset 0\norders: missing: {theirs.topic}-0 offset 1\n" in out
    assert "{x}" not in out
