"""Upsert targets with further unique columns: every legal history of rows is applied, however it is cut into epochs."""

from __future__ import annotations

import random
from typing import Any

import psycopg2
import pytest

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
        return {
            "id": key,
            "a": self.random.choice(["p", "q", "r", "P", "Q", None]),
            "b": self.random.choice([0, 1, 2, 3, 4, 6, 8, None]),
            "c": self.random.choice([1, 2, 3, 4, 5, 6, None]),
        }

    def _is_legal(self, row: Row) -> bool:
        statement = (
            "INSERT INTO twin (id, a, b, c) VALUES (%(id)s, %(a)s, %(b)s, %(c)s)"
            " ON CONFLICT (id) DO UPDATE SET (a, b, c) = (excluded.a, excluded.b, excluded.c)"
        )
        if row.get("_deleted"):
            statement = "DELETE FROM twin WHERE id = %(id)s"
        try:
            self.one.sql(statement, row)  # type: ignore[arg-type]
        except psycopg2.IntegrityError:
            return False
        return True


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

        wanted = one.sql("SELECT id, a, b, c FROM twin ORDER BY id")
        assert one.sql("SELECT id, a, b, c FROM t ORDER BY id") == wanted
        assert accounted(one) == len(rows)


def accounted(one: Bench) -> Any:
    [(total,)] = one.sql(
        "SELECT inserted + updated + deleted + superseded + unchanged FROM epochline.receipts"
        " ORDER BY epoch_id DESC LIMIT 1"
    )
    return total
