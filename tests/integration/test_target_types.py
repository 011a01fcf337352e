"""A target's columns may have any type: a value is stored exactly, or its record is bad, by real PostgreSQL.

Of types that the product does not know, PostgreSQL itself judges the texts at the seal: those that it refuses, and those
that it would round, cut or read as another value.
"""

import json
import re
from typing import Any

import pyarrow as pa
import pytest

from epochline import Json, Pipeline, PostgresTable
from epochline.cli.connections import in_environment
from epochline.declare.columns import BY_TEXT, SUPPORTED
from epochline.errors import RowsRefusedError, TargetError
from epochline.sources.reading import SourceReader
from tests.databases import as_connection
from tests.integration.auditing import audited
from tests.integration.bench import Row
from tests.integration.in_process import growing, over_source
from tests.integration.logins import AsSuperuser
from tests.integration.refusing import ORDER, Target, gone
from tests.integration.type_values import BAD, COLUMNS, GOOD, LINEAGE, RECORD, TYPES

EXTENSIONS = ("citext", "hstore", "ltree", "lquery", "ltxtquery")
"""Types of extensions that this server may lack."""


def typed(
    dsn: str, columns: dict[str, str], record: dict[str, str], values: list[Row], sink: PostgresTable | None = None,
    more: str = "", parse: str | None = None,
) -> Target:  # fmt: skip
    """A pipeline into a table with these columns, over records that are there already."""
    ddl = f"{TYPES} CREATE TABLE t ({listed(columns)}, {LINEAGE}); {more}"
    return Target(dsn, ddl, values, [sink or PostgresTable(table="t")], record=record or {"id": "int"}, parse=parse)


def listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


@pytest.fixture
def with_vector(as_superuser: AsSuperuser) -> None:
    """An extension, whose types end a statement with an error where those of PostgreSQL answer softly."""
    as_superuser("CREATE EXTENSION vector WITH SCHEMA public")


@pytest.mark.fault("F28")
@pytest.mark.usefixtures("with_vector")
def test_each_value_of_any_type_is_stored_as_it_is_or_its_record_is_bad(postgres_dsn: str) -> None:
    """K4, INV-9: no value is rounded, cut or read as another one. One further attempt is enough for all bad records."""
    values = [{name: value} for name, value, _ in GOOD] + [{name: value} for name, value in BAD]
    it = typed(postgres_dsn, COLUMNS, RECORD, values)

    assert len(it.sealed_after_attempts()) == 1

    names, texts = (", ".join(spelled.format(name) for name in COLUMNS) for spelled in ("'{}'", "{}::text"))
    stored = it.job.sql(f"SELECT _offset, json_object(ARRAY[{names}], ARRAY[{texts}]) FROM t ORDER BY 1")
    assert stored == [(at, {**dict.fromkeys(COLUMNS), name: shown}) for at, (name, _, shown) in enumerate(GOOD)]
    named = {at: re.search(r"\b(v\d+): ", reason) for at, reason in it.quarantined()}
    assert {at: found and found[1] for at, found in named.items()} == {
        at: name for at, (name, _) in enumerate(BAD, len(GOOD))
    }


@pytest.mark.usefixtures("with_vector")
def test_what_a_table_of_any_type_holds_is_copied_to_another_and_the_audit_finds_each_change(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13: the audit compares values of types that only PostgreSQL knows, such as the padded ones."""
    # As JSON, PostgreSQL writes money with a currency and a composite as an object.
    columns = {name: kind for name, kind in COLUMNS.items() if kind not in ("money", "cash", "money[]", "pair")}
    it = typed(postgres_dsn, columns, {}, [], more="ALTER TABLE t ADD id int")
    it.job.sql(f"CREATE TABLE held (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {listed(columns)})")
    held = [(name, shown) for name, _, shown in GOOD if name in columns]
    for name, shown in held:
        it.job.sql(f"INSERT INTO held ({name}) VALUES (%s)", shown)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", as_connection(postgres_dsn))
    shop, source = in_environment("shop"), growing("held", patience_seconds=0)
    record = {name: RECORD[name] if kind != "cheap" else "numeric" for name, kind in columns.items()} | {"id": "int"}
    pipeline = Pipeline(name="orders", source=source, parse=Json(columns=record), sinks=[PostgresTable(table="t")])
    copy = over_source(postgres_dsn, pipeline, shop)

    copy.epoch()

    texts = ", ".join(f"{name}::text" for name in columns)
    assert copy.sql(f"SELECT count(*) FROM (SELECT {texts} FROM t EXCEPT SELECT {texts} FROM held) d") == [(0,)]
    assert copy.sql("SELECT count(*) FROM t") == [(len(held),)]
    reader = SourceReader(source.spec, connection=shop)
    assert audited(postgres_dsn, "orders", reader) == []
    for name in columns:
        other = next(shown for one, _, shown in GOOD if one == name and shown)
        copy.sql(f"UPDATE t SET {name} = %s WHERE id = 1", other if name != "v0" else "sad")
    [found] = audited(postgres_dsn, "orders", reader)
    assert [name for name in columns if not re.search(rf"\b{name}\b", found)] == []


def lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A user's parse that returns Arrow's lists."""
    rows = [json.loads(value or b"{}") for value in batch.column("value").to_pylist()]
    numbers = pa.array([row["n"] for row in rows], pa.list_(pa.list_(pa.int64())))
    texts = pa.array([row["s"] for row in rows], pa.large_list(pa.string()))
    return pa.RecordBatch.from_pydict({"n": numbers, "s": texts})


def test_a_parse_may_return_lists(postgres_dsn: str) -> None:
    rows: list[Row] = [
        {"n": [[1, None], [3, 4]], "s": ["a", None, ""]}, {"n": None, "s": []}, {"n": [[1], [2, 3]], "s": None},
    ]  # fmt: skip
    columns = {"n": "int[]", "s": "text[]"}
    it = typed(postgres_dsn, columns, columns, rows, parse=f"{__name__}:lists")

    assert it.sealed_after_attempts() == []

    assert it.job.sql("SELECT n, s FROM t ORDER BY _offset") == [([[1, None], [3, 4]], ["a", None, ""]), (None, [])]
    assert "differ in length" in dict(it.quarantined())[2]


@pytest.mark.parametrize(("kind", "first", "second", "keys"), [
    ("char(3)", "ab", "ab ", 1), ("int4range", "[1,3]", "[1,4)", 1), ("varbit(8)", "101", "10", 2),
    ("price", "1.5", "1.50", 1), ("email", "a@b", "A@b", 2), ("mood", "ok", "sad", 2), ("text[]", ["a"], ["a", None], 2),
    ("oid", "41", "42", 2),
])  # fmt: skip
def test_a_key_of_any_type_is_compared_as_the_target_compares_it(
    postgres_dsn: str, kind: str, first: Any, second: Any, keys: int
) -> None:
    """The later record of a key wins, its deletion removes it, and a restore brings back what was there."""
    record = {"k": "text[]" if isinstance(first, list) else "text", "v": "text"}
    it = typed(
        postgres_dsn, {"k": f"{kind} NOT NULL UNIQUE", "v": "known"}, record, [{"k": first, "v": "x"}, {"k": second, "v": "y"}],
        PostgresTable(table="t", mode="upsert", key=["k"], before_images=2),
    )  # fmt: skip
    it.sealed_after_attempts()
    rows = it.job.sql("SELECT k::text, v::text FROM t ORDER BY v")
    assert [v for _, v in rows] == ["x", "y"][2 - keys :]
    it.job.act("savepoint", ORDER, name="one")
    it.add(gone(k=first), gone(k=second))

    it.sealed_after_attempts()

    assert it.job.sql("SELECT * FROM t") == []
    it.job.act("restore", ORDER, name="one")
    assert it.job.sql("SELECT k::text, v::text FROM t ORDER BY v") == rows


def test_a_domain_that_sums_leave_is_found_by_the_trial(postgres_dsn: str) -> None:
    """A measure is judged once it is summed: the increments alone need not be values of the domain."""
    it = typed(
        postgres_dsn, {"k": "email NOT NULL UNIQUE", "n": "cheap"}, {"k": "text", "n": "numeric"},
        [{"k": "a@b", "n": 90}, {"k": "a@b", "n": -1.25}, {"k": "ab", "n": 1}],
        PostgresTable(table="t", mode="add", key=["k"], measures=["n"]),
    )  # fmt: skip

    with pytest.raises(RowsRefusedError, match="k: the value is no email"):
        it.sealed_after_attempts()


@pytest.mark.parametrize(("kind", "said"), [
    ("rounding", "rounds or cuts values of its members"), ("priced", "rounds or cuts values of its members in silence: money"),
    ("nested[]", "an array of arrays"),
])  # fmt: skip
def test_a_type_whose_values_cannot_be_checked_is_refused_with_what_to_alter(
    postgres_dsn: str, kind: str, said: str
) -> None:
    more = "CREATE TYPE rounding AS (a numeric(4,2)); CREATE TYPE priced AS (a money); CREATE DOMAIN nested AS int[];"
    more += f" ALTER TABLE t ADD v {kind}"
    it = typed(postgres_dsn, {"id": "int"}, {"id": "int", "v": "text"}, [{"id": 1}], more=more)

    way_on = "ALTER TABLE t ALTER COLUMN v TYPE jsonb USING .* run `epochline run orders`$"
    with pytest.raises(TargetError, match=way_on) as raised:
        it.job.planned()

    assert said in str(raised.value)


def test_a_declared_table_may_have_each_type_that_is_listed(postgres_dsn: str) -> None:
    """`epochline migrate` makes it, the plan finds it as declared."""
    kinds = [*SUPPORTED, *BY_TEXT, "timestamp(3)", "char(3)", "interval(0)", "timetz(1)"]
    columns = {f"c{at}": kind for at, kind in enumerate(kinds) if kind not in EXTENSIONS}
    columns |= {f"a{at}": f"{kind}[]" for at, kind in enumerate(columns.values())}
    it = typed(postgres_dsn, {"id": "int"}, columns, [{}], PostgresTable(table="made", columns=columns))

    assert it.sealed_after_attempts() == []

    assert it.job.sql("SELECT count(*) FROM made") == [(1,)]


def test_money_has_the_decimals_of_the_database(postgres_dsn: str) -> None:
    """`money` counts cents, and the locale of the database says how many decimals these are."""
    noted = (
        "CREATE TABLE noted (at serial, locale text); CREATE FUNCTION note(money) RETURNS boolean LANGUAGE sql AS"
        " $$ INSERT INTO public.noted (locale) VALUES (current_setting('lc_monetary')) RETURNING true $$;"
        " CREATE DOMAIN noted_money AS money CHECK (public.note(VALUE)); ALTER TABLE t ADD v noted_money;"
        " DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lc_monetary TO ''C.utf8''', current_database()); END $$"
    )
    it = typed(postgres_dsn, {"id": "int"}, {"id": "int", "v": "money"}, [{"id": 1, "v": 2}], more=noted)

    it.sealed_after_attempts()

    assert it.job.sql("SELECT locale FROM noted ORDER BY at LIMIT 1") == [("C.utf8",)]
