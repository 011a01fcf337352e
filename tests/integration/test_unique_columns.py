"""Upsert targets with further unique columns: every legal history of rows is applied, however it is cut into epochs."""

import random
from contextlib import suppress
from typing import Any

import psycopg2
import pytest

from epochline.errors import RowsRefusedError
from epochline.postgres.targets import upsert
from tests.crash.reliability import Recovery
from tests.integration.bench import LINEAGE, Bench, NewBench, Row

RECORD = {"id": "bigint", "a": "text", "b": "integer", "c": "integer"}
COLUMNS = "id bigint PRIMARY KEY, a text, b int, c int"
NOT_NULL = COLUMNS.replace("a text", "a text NOT NULL")
KINDS = {
    "one column": f"{COLUMNS}, UNIQUE (a)",
    "two columns": f"{COLUMNS}, UNIQUE (a), UNIQUE (b)",
    "three columns": f"{COLUMNS}, UNIQUE (a), UNIQUE (b), UNIQUE (c)",
    "not null": f"{NOT_NULL}, UNIQUE (a)",
    "not null and nullable": f"{NOT_NULL}, UNIQUE (a), UNIQUE (b)",
    "over two columns": f"{COLUMNS}, UNIQUE (a, b)",
    "over two columns, one not null": f"{NOT_NULL}, UNIQUE (a, b)",
    "nulls not distinct": f"{COLUMNS}, UNIQUE NULLS NOT DISTINCT (a)",
    "nulls not distinct over two": f"{COLUMNS}, UNIQUE NULLS NOT DISTINCT (a, b)",
    "deferrable": f"{COLUMNS}, UNIQUE (a) DEFERRABLE",
    "initially deferred": f"{NOT_NULL}, UNIQUE (a) DEFERRABLE INITIALLY DEFERRED, UNIQUE (b)",
    "exclusion": f"{COLUMNS}, EXCLUDE USING gist (int4range(b, b + 2) WITH &&)",
    "exclusion with a condition": f"{COLUMNS}, EXCLUDE USING hash (a WITH =) WHERE (b > 1)",
    "foreign key": f"{COLUMNS}, FOREIGN KEY (a) REFERENCES words, UNIQUE (a)",
    "generated": f"{COLUMNS}, lower_a text GENERATED ALWAYS AS (lower(a)) STORED UNIQUE",
    "with a default": f"{COLUMNS}, kind text DEFAULT 'x', UNIQUE (a, kind)",
    "expression": f"{COLUMNS}); CREATE UNIQUE INDEX ON $ (lower(a)",
    "expression that is never null": f"{COLUMNS}); CREATE UNIQUE INDEX ON $ (coalesce(a, '')",
    "partial": f"{COLUMNS}); CREATE UNIQUE INDEX ON $ (a) WHERE (b > 1",
    "partial on null": f"{COLUMNS}); CREATE UNIQUE INDEX ON $ (a) WHERE (c IS NULL",
    "collation": f'{COLUMNS}); CREATE UNIQUE INDEX ON $ (a COLLATE "C" text_pattern_ops',
    "of a partition": f"{COLUMNS}) PARTITION BY HASH (id); CREATE TABLE $_all PARTITION OF $ (UNIQUE (a))"
    " FOR VALUES WITH (MODULUS 1, REMAINDER 0",
}  # fmt: skip
"""What follows ``CREATE TABLE $ (``, up to the last bracket; ``$`` is the table."""

EPOCHS = 6
BEFORE = "CREATE TABLE words (word text PRIMARY KEY); INSERT INTO words VALUES ('p'), ('q'), ('r'), ('P'), ('Q');"


def made(kind: str, table: str, more: str = "") -> str:
    first, bracket, rest = KINDS[kind].partition(")") if ";" in KINDS[kind] else (KINDS[kind], "", "")
    return f"CREATE TABLE {table} ({first}{more}{bracket}{rest})".replace("$", table)


class History:
    """Records drawn at random and applied one by one to a twin of the target, which refuses what is not legal."""

    def __init__(self, one: Bench, kind: str, seed: int) -> None:
        self.one, self.random = one, random.Random(f"{kind} {seed}")

    def records(self, most: int) -> list[Row]:
        """Up to so many legal records."""
        return [row for row in (self._drawn() for _ in range(most * 2)) if self._is_legal(row)]

    def _drawn(self) -> Row:
        key = self.random.randint(1, 5)
        if self.random.random() < 0.2:
            return {"id": key, "_deleted": True, "a": "p"}
        choices: dict[str, list[Any]] = {
            "a": ["p", "q", "r", "P", "Q", None],
            "b": [0, 1, 2, 3, 4, 6, 8, None],
            "c": [1, 2, 3, 4, 5, 6, None],
        }
        return {"id": key} | {name: self.random.choice(values) for name, values in choices.items()}

    def _is_legal(self, row: Row) -> bool:
        statement = "INSERT INTO twin (id, a, b, c) VALUES (%(id)s, %(a)s, %(b)s, %(c)s) ON CONFLICT (id) DO UPDATE"
        statement += " SET (a, b, c) = (excluded.a, excluded.b, excluded.c)"
        if row.get("_deleted"):
            statement = "DELETE FROM twin WHERE id = %(id)s"
        with suppress(psycopg2.IntegrityError):
            self.one.sql(statement, row)  # type: ignore[arg-type]
            return True
        return False


@pytest.mark.fault("F45")
@pytest.mark.parametrize("kind", KINDS)
def test_a_legal_history_gives_the_rows_of_one_record_at_a_time(bench: NewBench, kind: str) -> None:
    """INV-2, INV-9: deleted values are taken, values are handed on and swapped; each epoch's rows are accounted for."""
    lineage = len(kind) % 2 == 0
    ddl = f"{BEFORE} {made(kind, 't', LINEAGE if lineage else '')}; {made(kind, 'twin')}"
    one = bench(RECORD, existing=ddl, mode="upsert", key="id", lineage=lineage)
    history = History(one, kind, seed=0)

    for _ in range(EPOCHS):
        rows = [{**row, "_partition": row["id"] % 2} for row in history.records(history.random.randint(1, 9))]
        if not rows:
            continue
        one.epoch(*rows)

        assert one.sql("SELECT id, a, b, c FROM t ORDER BY id") == one.sql("SELECT id, a, b, c FROM twin ORDER BY id")
        assert accounted(one) == len(rows)


def accounted(one: Bench) -> Any:
    fates = "inserted + updated + deleted + superseded + unchanged"
    [(total,)] = one.sql(f"SELECT {fates} FROM epochline.receipts ORDER BY epoch_id DESC LIMIT 1")
    return total


def existing(columns: str, more: str = "") -> str:
    return f"{BEFORE} CREATE TABLE t ({columns}, n bigint GENERATED ALWAYS AS IDENTITY, note text{LINEAGE}); {more}"


def put(key: int, a: str | None, b: int | None = None) -> Row:
    return {"id": key, "a": a, "b": b, "_partition": key % 2}


def delete(key: int) -> Row:
    return {"id": key, "a": "", "_deleted": True, "_partition": key % 2}


FIRST = [put(1, "p"), put(2, "q"), put(3, "r"), put(5, "P")]
CASES = {
    "deleted": ([delete(3), put(4, "r")], [(1, "p"), (2, "q"), (4, "r"), (5, "P")]),
    "handed on": ([put(5, "Q"), put(4, "P")], [(1, "p"), (2, "q"), (3, "r"), (4, "P"), (5, "Q")]),
    "swapped": ([put(1, "q"), put(2, "p")], [(1, "q"), (2, "p"), (3, "r"), (5, "P")]),
    "around": ([put(1, "q"), put(2, "r"), put(3, "p"), put(4, "P"), delete(5)],
               [(1, "q"), (2, "r"), (3, "p"), (4, "P")]),
}  # fmt: skip
WAYS = {
    "null": (f"{COLUMNS}, UNIQUE (a)", ""),
    "not null": (f"{NOT_NULL}, UNIQUE (a)", ""),
    "not null, and another table refers to it": (
        f"{NOT_NULL}, UNIQUE (a)", "CREATE TABLE pet (owner bigint REFERENCES t, called text REFERENCES t (a) $);",
    ),
}  # fmt: skip


@pytest.mark.fault("F45")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_stays_keeps_what_the_pipeline_does_not_write(
    bench: NewBench, way: str, case: str, recovery: Recovery
) -> None:
    """INV-9: identities, columns of others and rows of other tables are as before, whatever way a value takes."""
    columns, more = WAYS[way]
    one = bench(RECORD, existing=existing(columns, more.replace("$", "")), mode="upsert", key="id").after(FIRST)
    one.sql("UPDATE t SET note = 'note ' || id")
    if more:
        one.sql("INSERT INTO pet (owner) VALUES (1), (2)")
    was = dict(one.sql("SELECT id, (n, note)::text FROM t"))
    rows, due = CASES[case]

    recovery.last_fault()
    one.epoch(*rows)
    recovery.took()

    assert one.sql("SELECT id, a FROM t ORDER BY id") == due
    now = dict(one.sql("SELECT id, (n, note)::text FROM t"))
    assert {key: now[key] for key in now.keys() & was} == {key: was[key] for key in now.keys() & was}
    assert accounted(one) == len(rows)
    if more:
        assert one.sql("SELECT owner FROM pet ORDER BY owner") == [(1,), (2,)]


NO_WAY = {
    "a cascade": "CREATE TABLE pet (owner bigint REFERENCES t ON DELETE CASCADE)",
    "a set null": "CREATE TABLE pet (owner bigint REFERENCES t ON DELETE SET NULL)",
    **{
        f"a trigger that sees {what.lower()}s": "CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN"
        f" RETURN NULL; END'; CREATE TRIGGER seen AFTER {what} ON t FOR EACH ROW EXECUTE FUNCTION seen()"
        for what in ("DELETE", "UPDATE")
    },
}


@pytest.mark.fault("F45")
@pytest.mark.parametrize("name", NO_WAY)
def test_a_swap_that_another_table_or_a_trigger_would_see_as_a_deletion_is_named(bench: NewBench, name: str) -> None:
    """INV-9: where no way passes, the records are named with the reason; values that are handed on still pass."""
    one = bench(RECORD, existing=existing(f"{NOT_NULL}, UNIQUE (a)", NO_WAY[name]), mode="upsert", key="id")
    one.epoch(*FIRST)
    if "trigger" not in name:
        one.sql("INSERT INTO pet VALUES (1), (2)")
    one.epoch(put(5, "Q"), put(4, "P"))
    rows, _ = CASES["swapped"]

    with pytest.raises(RowsRefusedError, match="offset") as raised:
        one.sealed(*rows)

    assert "t_a_key" in str(raised.value)
    assert "no column of t_a_key can be NULL for a moment; a " in str(raised.value)
    assert one.sql("SELECT id, a FROM t ORDER BY id") == [(1, "p"), (2, "q"), (3, "r"), (4, "P"), (5, "Q")]
    if "trigger" not in name:
        assert one.sql("SELECT owner FROM pet ORDER BY owner") == [(1,), (2,)]


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_a_value_that_other_tables_follow_is_not_null_for_a_moment(bench: NewBench, action: str) -> None:
    """NULL would be followed for good: the rows go another way, or are named."""
    more = f"CREATE TABLE pet (called text REFERENCES t (a) ON UPDATE {action})"
    one = bench(RECORD, existing=existing(f"{COLUMNS}, UNIQUE (a)", more), mode="upsert", key="id").after(FIRST)
    one.sql("INSERT INTO pet VALUES ('p'), ('q')")
    rows, due = CASES["swapped"]

    one.epoch(*rows)

    assert one.sql("SELECT id, a FROM t ORDER BY id") == due
    assert one.sql("SELECT called FROM pet ORDER BY called") == [("p",), ("q",)]


@pytest.mark.fault("F45")
@pytest.mark.parametrize("columns", [COLUMNS, NOT_NULL], ids=["null", "not null"])
def test_only_rows_that_cannot_be_there_in_the_end_are_blamed(bench: NewBench, columns: str) -> None:
    """INV-9: a value that a row keeps, or that two rows take; what is swapped and handed on beside it is no one's fault."""
    one = bench(RECORD, existing=existing(f"{columns}, UNIQUE (a)"), mode="upsert", key="id").after(FIRST)
    swapped, _ = CASES["swapped"]
    rows = [*swapped, put(4, "P"), put(6, "Q"), put(8, "Q")]  # 5 keeps P; 6 comes before 8

    with pytest.raises(RowsRefusedError, match="duplicate key value violates unique constraint") as raised:
        one.sealed(*rows)

    places = [part.partition(" for ")[0] for part in str(raised.value).split("orders-")[1:]]
    even = [row for row in FIRST + rows if not row["_partition"]]
    assert places == [f"0 offset {number}" for number, row in enumerate(even) if row["id"] in (4, 8)]


def test_a_target_without_further_rules_is_asked_nothing_more(bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The common path has no savepoint and no other query."""
    one = bench(RECORD, existing=existing(COLUMNS), mode="upsert", key="id")
    monkeypatch.setattr(upsert, "attempt", None)
    monkeypatch.setattr(upsert, "make_way", None)

    one.epoch(*FIRST)

    assert one.sql("SELECT count(*) FROM t") == [(4,)]
