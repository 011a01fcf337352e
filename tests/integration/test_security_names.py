"""Hostile names and texts (SEC-1): a name is made exactly as it is written, or refused where it is written."""

from typing import Any

import pytest
from psycopg2 import sql

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.errors import DeclarationError
from epochline.protocol.epoch import Run
from tests.contract.worlds import World, orders
from tests.databases import query
from tests.integration.bench import Bench
from tests.integration.in_process import over_records
from tests.integration.kafka_topics import Topic
from tests.integration.sinks_world import in_process

TEXT = """it's "quoted"; DROP TABLE epochline.epoch; -- %s %(x)s {{ conn.epochline_postgres.password }} ü🧾 \\ :x"""
NAMES = {
    "quotes": 'o\'r"d""er', "statement": 'x"; DROP SCHEMA epochline CASCADE; --', "comment": "a -- b /* c */",
    "placeholders": "50%s %(x)s %% %", "colon": ":name ::text", "unicode": "заказы-注文-🧾",
    "right to left": "\u202egpj.exe", "63 bytes": "z" * 63, "63 bytes of unicode": "ü" * 31 + "x", "reserved": "select",
    "like a system table": "pg_class", "like a temporary schema": "pg_temp", "like the ledger": "epochline",
    "white space": " \t\n", "upper case": "Table", "template": "{{ var.value.x }}", "function": "coalesce", "alias": "total",
    "one letter": "s", "backslash": "a\\b", "dot": "a.b", "underscore": "_id", "underscores": "__v",
}  # fmt: skip
# Append and replace use no name in a way that upsert does not.
NAMED = [(mode, name) for mode in ("upsert", "add") for name in NAMES]
NAMED += [(mode, name) for mode in ("append", "replace") for name in ("quotes", "placeholders", "underscore")]
RELATIONS = (
    "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind IN ('r', 'v', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
)
"""Every table and view of a user, by schema and name, exactly as the catalogue spells them."""


@pytest.mark.parametrize(("mode", "name"), NAMED, ids=[f"{mode} {name}" for mode, name in NAMED])
def test_the_table_that_is_made_has_exactly_the_declared_name(postgres_dsn: str, mode: str, name: str) -> None:
    """SEC-1: as schema, table, key and columns at once; nothing else is made, and the rows of two epochs are in it."""
    name = NAMES[name]
    other = f"{name[:20]}2"
    schema = "s " + name[:60] if len(name.encode()) > 61 or name.startswith(("pg_", "epochline")) else name
    schema = schema.encode()[:63].decode(errors="ignore").replace(".", "")
    columns = {name: "text", other: "integer"}
    before = query(postgres_dsn, RELATIONS)

    keyed = {"upsert": {"key": name, "order_by": other}, "add": {"key": name, "measures": other}}.get(mode, {})
    sink: dict[str, Any] = {"table": f"{schema}.{name}", "mode": mode, "columns": columns, **keyed}
    hostile = Bench(postgres_dsn, PostgresTable(**sink), columns).after([{name: TEXT, other: 1}])
    hostile.epoch({name: TEXT, other: 2})

    made = set(query(postgres_dsn, RELATIONS)) - set(before)
    assert {one for one in made if not one[1].startswith("deleted_")} == {(schema, name)}
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    found = query(postgres_dsn, sql.SQL("SELECT {} FROM {} ORDER BY 2").format(listed, sql.Identifier(schema, name)))
    expected = {"append": [1, 2], "upsert": [2], "add": [3], "replace": [2]}
    assert found == [(TEXT, number) for number in expected[mode]]


def test_hostile_names_of_columns_and_tables_are_taken_as_they_are(postgres_dsn: str) -> None:
    """SEC-1: by the writer of a job, whose COPY names them."""
    columns = {'a"b': "bigint", "a'; DROP TABLE x; --": "text", "A": "integer", "a": "integer", "ä.`x`": "text"}
    table, values = PostgresTable(table='public.we"ird; --', columns=columns), (1, "t", 2, 3, "u")
    pipeline = Pipeline(name="weird", source=KafkaSource(topics="weird"), parse=Json(columns=columns), sinks=[table])
    it = over_records(postgres_dsn, pipeline, [dict(zip(columns, values, strict=True))])

    _, _, ticket = it.staged()

    staged = sql.Identifier("epochline_staging", ticket.table(table.table).table)
    assert [row[:5] for row in query(postgres_dsn, sql.SQL("SELECT * FROM {}").format(staged))] == [values]


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


def test_a_topic_of_dots_and_249_characters_is_planned_and_staged_by_its_own_name(
    postgres_dsn: str, kafka_bootstrap: str
) -> None:
    """SEC-1, on a real broker: the longest name that there is, and the ledger spells it out."""
    topic = ("Hostile.topic-_" * 17)[:249]
    Topic(kafka_bootstrap, topic).make().produce(0, 1)
    pipeline = orders(name="long.name-of_100" + "x" * 84, source=KafkaSource(topics=topic))
    it = in_process(postgres_dsn, kafka_bootstrap, pipeline).create()

    planned, who = it.planned()

    assert [(one.tp.topic, one.range.until) for one in planned.ranges] == [(topic, 1)]
    assert all(len(staged.table) <= 63 for staged in it.attempt(planned, who).tables)


def test_what_a_trigger_says_is_kept_as_it_was_said(world: World, postgres_dsn: str) -> None:
    """SEC-1: note, run, DAG, host and reason are values; the ledger gives them back byte for byte."""
    said = Run(dag_id=f"dag {TEXT}", run_id=f"run {TEXT}", host=f"host {TEXT}")

    world.to_begun(said, note=TEXT)
    world.abort(1, said, reason=TEXT)

    kept = query(postgres_dsn, "SELECT dag_id, run_id, host, note, error FROM epochline.epoch")
    assert kept == [(said.dag_id, said.run_id, said.host, TEXT, TEXT)]
