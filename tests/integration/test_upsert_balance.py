"""Every row staged for an upsert is inserted, updated, deleted, superseded or unchanged, and the receipt says how many."""

from typing import Any

import pytest
from psycopg2 import errors, sql

from epochline.errors import SealRefusedError, TargetError
from epochline.postgres.targets import fates
from tests.integration.bench import Bench, NewBench, Row

COUNTS = ("inserted", "updated", "deleted", "superseded", "unchanged")
OLD_ROWS = "CREATE TABLE t (k text PRIMARY KEY, v int); INSERT INTO t VALUES ('a', 1), ('b', 1), ('z', 1);"
LINEAGE_ADDED = "ALTER TABLE t ADD _topic text, ADD _partition int, ADD _offset bigint, ADD _row int, ADD _epoch bigint"


def kv(k: Any, v: Any, **more: Any) -> Row:
    return {"k": k, "v": v, **more}


def counts(one: Bench, epoch_id: int) -> dict[str, int]:
    [row] = one.sql(f"SELECT {', '.join(COUNTS)} FROM epochline.receipts WHERE epoch_id = {epoch_id}")
    return {name: count for name, count in zip(COUNTS, row, strict=True) if count}


def test_rows_from_before_their_lineage_columns_are_older_than_every_record(bench: NewBench) -> None:
    """INV-9: the ALTER TABLE that the plan's error recommends leaves NULL in old rows; they refuse no newer record."""
    one = bench(existing=OLD_ROWS, mode="upsert", key="k")
    with pytest.raises(TargetError, match="lacks _topic text"):
        one.plan(kv("a", 2))
    one.sql(LINEAGE_ADDED)

    one.epoch(kv("a", 2), kv("b", None, _deleted=True), kv("c", 2))
    one.epoch(kv("a", 3), kv("c", 3))

    assert one.rows("k, v, _offset") == [("a", 3, 4), ("c", 3, 5), ("z", 1, None)]
    assert counts(one, 1) == {"inserted": 1, "updated": 1, "deleted": 1}
    assert counts(one, 2) == {"updated": 2}


def test_rows_from_before_their_order_column_are_older_than_every_record(bench: NewBench) -> None:
    """INV-9: a declared order that is kept without lineage."""
    existing = "CREATE TABLE t (k text PRIMARY KEY, v int, at int, _order_at int); INSERT INTO t VALUES ('a', 1, 1), ('b', 1, 1)"
    record = {"k": "text", "v": "integer", "at": "integer"}
    one = bench(record, existing=existing, mode="upsert", key="k", order_by="at", lineage=False)

    one.epoch(kv("a", 2, at=5), kv("b", None, at=5, _deleted=True))

    assert one.rows("k, v, at, _order_at") == [("a", 2, 5, 5)]
    assert counts(one, 1) == {"updated": 1, "deleted": 1}


@pytest.mark.parametrize("superseded", [False, True], ids=["first generation", "a later generation"])
def test_a_row_without_its_epoch_is_of_no_generation(bench: NewBench, superseded: bool) -> None:
    one = bench(existing=OLD_ROWS + LINEAGE_ADDED, mode="upsert", key="k")
    if superseded:
        one.epoch(kv("c", 1))
        one.sql("UPDATE epochline.pipeline SET generation = 2")
        one.sql("UPDATE t SET _epoch = NULL")

    one.epoch(kv("a", 2))

    assert one.rows("k, v")[0] == ("a", 2)


def test_every_fate_of_a_row_is_counted(bench: NewBench) -> None:
    """INV-9: seven rows of an epoch, one that lost within it, two that lost against the table.

    The ledger refuses a receipt whose counts do not add up.
    """
    one = bench(mode="upsert", key="k", order_by="v")
    one.epoch(kv("newer", 9), kv("gone", 9), kv("b", 1), kv("c", 1))
    one.epoch(kv("gone", 10, _deleted=True))
    assert counts(one, 1) == {"inserted": 4}
    assert counts(one, 2) == {"deleted": 1}

    gone = [kv("c", 2, _deleted=True), kv("never there", 1, _deleted=True)]
    one.epoch(kv("a", 1), kv("a", 2), kv("newer", 3), kv("gone", 3), kv("b", 2), *gone)

    assert one.rows() == [("a", 2), ("b", 2), ("newer", 9)]
    assert counts(one, 3) == {"inserted": 1, "updated": 1, "deleted": 1, "superseded": 3, "unchanged": 1}
    with pytest.raises(errors.CheckViolation, match="every_row_is_accounted_for"):
        one.sql("UPDATE epochline.receipt SET inserted = 2 WHERE epoch_id = 3")


def test_a_trigger_that_swallows_rows_of_an_upsert_is_found_at_the_seal(bench: NewBench) -> None:
    """INV-9: also where it came after the seal, by the commit."""
    one = bench(mode="upsert", key="k")
    one.sql("CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    trigger = "CREATE TRIGGER swallow BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.k = 'b') EXECUTE FUNCTION swallow()"
    sealed = one.sealed(kv("a", 1), kv("b", 1))
    one.sql(trigger)

    with pytest.raises(TargetError, match="2 rows were to be inserted into t.* but 1 were written"):
        one.commit(sealed)
    assert one.rows() == []

    one.sql("DROP TRIGGER swallow ON t")
    one.commit(sealed)
    one.sql(trigger)
    with pytest.raises(SealRefusedError, match="a trial shows that the epoch could not commit: .* drops rows"):
        one.sealed(kv("b", 2), kv("a", 2))


def test_without_the_guard_the_balance_does_not_close(bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken away: what used to vanish with a green receipt is neither written nor known to be old."""
    one = bench(existing=OLD_ROWS + LINEAGE_ADDED, mode="upsert", key="k")
    sealed = one.sealed(kv("a", 2), kv("c", 2))
    plain = sql.SQL("(({}) > ({}))")
    monkeypatch.setattr(fates, "_newer", lambda left, right: plain.format(left, right))

    with pytest.raises(TargetError, match="of 2 rows staged for t, 1 are neither newer nor older"):
        one.commit(sealed)

    assert one.rows("k, v") == [("a", 1), ("b", 1), ("z", 1)]
    monkeypatch.undo()
    one.commit(sealed)
    assert counts(one, 1) == {"inserted": 1, "updated": 1}
