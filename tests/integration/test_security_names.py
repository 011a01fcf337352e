"""Hostile names and texts (SEC-1): a name is made exactly as it is written, or refused where it is written."""

from typing import Any

import pytest
from psycopg2 import sql

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.coordinator import LEASE, PlanRequest, abort, begin, plan
from epochline.errors import DeclarationError
from epochline.kafka.source import KafkaOffsets
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run
from tests.contract.worlds import orders, run
from tests.databases import query
from tests.in_memory.kafka import FakeKafka
from tests.integration.bench import Bench
from tests.integration.kafka_topics import Topic

TEXT = """it's "quoted"; DROP TABLE epochline.epoch; -- %s %(x)s {{ conn.epochline_postgres.password }} ü🧾 \\ :x"""
NAMES = {
    "quotes": 'o\'r"d""er', "statement": 'x"; DROP SCHEMA epochline CASCADE; --', "comment": "a -- b /* c */",
    "placeholders": "50%s %(x)s %% %", "colon": ":name ::text", "unicode": "заказы-注文-🧾",
    "right to left": "\u202egpj.exe", "63 bytes": "z" * 63, "63 bytes of unicode": "ü" * 31 + "x", "reserved": "select",
    "like a system table": "pg_class", "like a temporary schema": "pg_temp", "like the ledger": "epochline",
    "white space": " \t\n", "upper case": "Table", "template": "{{ var.value.x }}",
}  # fmt: skip


RELATIONS = (
    "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind IN ('r', 'v', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
)
"""Every table and view of a user, by schema and name, exactly as the catalogue spells them."""


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_the_table_that_is_made_has_exactly_the_declared_name(postgres_dsn: str, name: str) -> None:
    """SEC-1: as schema, table and columns at once; nothing else is made, and the rows are in it."""
    schema = "s " + name[:60] if len(name.encode()) > 61 or name.startswith(("pg_", "epochline")) else name
    schema = schema.encode()[:63].decode(errors="ignore").replace(".", "")
    columns = {name: "text", f"{name[:20]}2": "integer"}
    before = query(postgres_dsn, RELATIONS)

    hostile = Bench(postgres_dsn, PostgresTable(table=f"{schema}.{name}", columns=columns), columns)
    hostile.epoch({name: TEXT, f"{name[:20]}2": 7})

    assert set(query(postgres_dsn, RELATIONS)) - set(before) == {(schema, name)}
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    found = query(postgres_dsn, sql.SQL("SELECT {} FROM {}").format(listed, sql.Identifier(schema, name)))
    assert found == [(TEXT, 7)]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("pg_temp.t", "is reserved"), ("pg_temp_3.t", "is reserved"), ("pg_toast.t", "is reserved"),
        ("pg_catalog.pg_class", "is reserved"), ("information_schema.tables", "is reserved"),
        ("epochline.epoch", "is reserved"), ("epochline_staging.t", "is reserved"), ("x" * 64, "63 bytes"),
        ("s." + "ü" * 32, "63 bytes"), ("", "empty"), ("s.", "empty"), (".t", "empty"), ("a\0b", "NUL"),
        ("a\ud800b", "surrogates"),
    ],
)  # fmt: skip
def test_a_table_that_postgresql_would_cut_hide_or_refuse_is_refused_when_declared(table: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        PostgresTable(table=table, columns={"k": "text"})


@pytest.mark.parametrize("table", ["EPOCHLINE.t", "Pg_temp.t", "public.pg_temp", "public.epochline.epoch"])
def test_a_name_that_only_looks_like_one_of_those_is_a_name(table: str) -> None:
    assert PostgresTable(table=table, columns={"k": "text"}).table == table


@pytest.mark.parametrize(
    "kind",
    ["text); DROP TABLE t; --", "text DEFAULT pg_sleep(9)", "integer[", 'text COLLATE "C"', "regclass", "text\0"],
)
def test_a_type_is_one_of_a_list_and_never_a_piece_of_sql(kind: str) -> None:
    with pytest.raises(DeclarationError, match="unsupported type"):
        PostgresTable(table="t", columns={"k": kind})


@pytest.mark.parametrize(
    "name", ["a;b", 'a"b', "a b", "ü", "a/b", "../../etc", "{{ x }}", "a\n", "x" * 101, "", "-a", "_a", "%s"]
)
def test_a_pipeline_has_a_plain_name(name: str) -> None:
    """It is a DAG's id, part of a consumer group, of file names and of Spark's application name."""
    with pytest.raises(DeclarationError, match="name"):
        orders(name=name)


@pytest.mark.parametrize("topic", ["a;b", "a b", "ü", "a/b", "..", ".", "x" * 250, "a\n", "{{ x }}", "a,b"])
def test_a_topic_that_kafka_would_not_have_is_refused(topic: str) -> None:
    with pytest.raises(DeclarationError, match="topic"):
        KafkaSource(topics=topic)


def test_a_topic_of_dots_and_249_characters_is_planned_and_staged_by_its_own_name(
    postgres_dsn: str, kafka_bootstrap: str
) -> None:
    """SEC-1, on a real broker: the longest name that there is, and the ledger spells it out."""
    topic = ("Hostile.topic-_" * 17)[:249]
    Topic(kafka_bootstrap, topic).make().produce(0, 1)
    pipeline = Pipeline(
        name="long.name-of_100" + "x" * 84, source=KafkaSource(topics=topic), parse=Json(columns={"v": "text"}),
        sinks=[PostgresTable(table="long_topic", columns={"v": "text"})],
    )  # fmt: skip
    ledger = PostgresLedger(postgres_dsn)
    with ledger.transaction() as tx:
        tx.targets.create(pipeline)

    planned = plan(ledger, KafkaOffsets({"bootstrap.servers": kafka_bootstrap}), pipeline, run())

    assert [(one.tp.topic, one.range.until) for one in planned.ranges] == [(topic, 1)]
    ticket = begin(ledger, pipeline.name, 1, run(), lease=LEASE)
    assert ticket is not None
    assert all(len(staged.table) <= 63 for staged in ticket.tables)


def test_what_a_trigger_says_is_kept_as_it_was_said(postgres_dsn: str) -> None:
    """SEC-1: note, run, DAG, host and reason are values; the ledger gives them back byte for byte."""
    ledger, kafka, pipeline = PostgresLedger(postgres_dsn), FakeKafka(), orders()
    with ledger.transaction() as tx:
        tx.targets.create(pipeline)
    kafka.produce("orders", 0, 3)
    said = Run(dag_id=f"dag {TEXT}", run_id=f"run {TEXT}", host=f"host {TEXT}")

    planned = plan(ledger, kafka, pipeline, said, PlanRequest(note=TEXT))
    assert planned.epoch is not None
    begin(ledger, "orders", planned.epoch.epoch_id, said, lease=LEASE)
    abort(ledger, "orders", planned.epoch.epoch_id, said, reason=TEXT)

    kept = query(postgres_dsn, "SELECT dag_id, run_id, host, note, error FROM epochline.epoch")
    assert kept == [(said.dag_id, said.run_id, said.host, TEXT, TEXT)]


@pytest.mark.parametrize("limit", ["1; DROP TABLE x", "{{ 1 }}", "1e3", "", "0x10", None, [], "-1"])
def test_a_limit_in_a_declaration_is_a_whole_number_above_nothing(limit: Any) -> None:
    with pytest.raises(DeclarationError, match="records_per_epoch"):
        KafkaSource(topics="a", records_per_epoch=limit)
