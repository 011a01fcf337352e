"""What a receipt counts: each staged row is written, deleted, superseded, unchanged or a skipped repeat of a unique key."""

from contextlib import closing
from threading import Timer
from typing import Any

import psycopg2
import pyarrow as pa
import pytest
from psycopg2 import errors, sql

from epochline.arrow.cast.types import record_schema
from epochline.audit.rows import ExpectedRows
from epochline.audit.session import open_session
from epochline.declare.columns import STAGED_LINEAGE
from epochline.errors import RowsRefusedError, SealRefusedError, TargetError
from epochline.postgres.targets import fates
from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.databases import BY_HAND
from tests.integration.bench import ADD, KV, LINEAGE, UPSERT, Bench, NewBench, Row, in_public, kv

PLACE = ("_topic", "_partition", "_offset", "_row")


def skipped(one: Bench) -> list[tuple[int, int, int, int]]:
    """Per epoch: sealed rows, inserted rows, and those that the receipt counts as unchanged."""
    return one.sql("SELECT epoch_id, rows, inserted, unchanged FROM epochline.receipts ORDER BY 1")  # type: ignore[no-any-return]


def test_a_record_that_was_produced_twice_with_one_business_key_is_one_row(bench: NewBench) -> None:
    """Q10, P1, INV-9: within an epoch, from another partition, and in a later epoch. The receipt counts each repeat."""
    one = bench(key="k", repeats="skip")

    one.epoch(kv("a", 1), kv("a", 2), kv("b", 3, _partition=1), kv("b", 4))
    result = one.epoch(kv("a", 5), kv("c", 6))

    assert one.rows("k, v, _epoch") == [("a", 1, 1), ("b", 4, 1), ("c", 6, 2)]
    assert skipped(one) == [(1, 4, 2, 2), (2, 2, 1, 1)]
    assert (result.epoch.rows_written, result.epoch.counts.passed) == (1, 2)


def test_a_key_with_the_time_of_the_call_in_it_removes_no_repeat(bench: NewBench) -> None:
    """P1: a key must be the same for the same event."""
    one = bench({"k": "text", "v": "integer", "called_at": "timestamptz"}, key=("k", "called_at"), repeats="skip")

    one.epoch(kv("a", 1, called_at="2026-03-01 12:00:00Z"), kv("a", 1, called_at="2026-03-01 12:00:01Z"))

    assert one.rows() == [("a", 1), ("a", 1)]


def test_a_repeat_is_refused_before_the_seal_and_named(bench: NewBench) -> None:
    """P14: `repeats="refuse"`. Nothing of the epoch is there."""
    one = bench(key="k", repeats="refuse").after([kv("a", 1)])

    for epoch_id, rows in ((2, [kv("b", 2), kv("a", 3)]), (3, [kv("b", 2), kv("b", 2, _partition=1), kv("c", 1)])):
        with pytest.raises(RowsRefusedError, match=r"a repeat of its key \(k\)"):
            one.sealed(*rows)
        one.abort(epoch_id, f"run-{epoch_id}")

    assert one.rows() == [("a", 1)]


def test_the_place_of_a_record_is_a_unique_key_that_the_database_enforces(bench: NewBench) -> None:
    """P14: staging and a unique key of topic, partition and offset at once."""
    one = bench(key=PLACE, repeats="refuse")

    one.epoch(kv("a", 1), kv("a", 1), kv("a", 1, _partition=1))
    one.epoch(kv("a", 1))

    assert one.rows() == [("a", 1)] * 4
    with pytest.raises(psycopg2.errors.UniqueViolation):
        one.sql("INSERT INTO t SELECT * FROM t LIMIT 1")
    one.sql("UPDATE t SET _offset = 3 WHERE _offset = 2")  # a row that says it is of the next record
    with pytest.raises(RowsRefusedError, match="a repeat of its key"):
        one.sealed(kv("b", 2))


@pytest.mark.parametrize(("repeats", "refused"), [("skip", False), ("refuse", True)])
def test_a_key_that_another_program_wrote_after_the_seal_is_not_there_twice(
    bench: NewBench, repeats: str, refused: bool
) -> None:
    one = bench(key="k", repeats=repeats)
    sealed = one.sealed(kv("a", 1), kv("b", 1))
    one.sql("INSERT INTO t (k, v, _topic, _partition, _offset, _row, _epoch) VALUES ('a', 7, '', 9, 0, 0, 1)")

    if refused:
        with pytest.raises(TargetError, match=r"another program wrote a key \(k\) of this epoch"):
            one.commit(sealed)
        assert one.rows() == [("a", 7)]
    else:
        one.commit(sealed)
        assert one.rows() == [("a", 7), ("b", 1)]
        assert skipped(one) == [(1, 2, 1, 1)]


def test_an_audit_misses_no_repeat_that_was_skipped_but_a_key_that_has_no_row(bench: NewBench) -> None:
    """P14: what the audit expects of a target that skips repeats."""
    one = bench(key="k", repeats="skip").after([kv("a", 1), kv("a", 2), kv("b", 3)])
    columns = {**KV, **STAGED_LINEAGE}
    values = {"k": ["a", "a", "b"], "v": [1, 2, 3], "_topic": ["orders"] * 3, "_partition": [0] * 3}
    rows = pa.RecordBatch.from_pydict({**values, "_offset": [0, 1, 2], "_row": [0] * 3}, schema=record_schema(columns))

    def missing(skipped: dict[str, tuple[str, ...]]) -> list[int | None]:
        with open_session(one.dsn) as connection, ExpectedRows(connection, {"t": columns}, skipped) as expected:
            expected.add("t", 1, rows)
            return [found.offset for found in expected.differences("t", [1]) if found.kind == "missing"]

    assert missing({}) == [1]
    assert missing({"t": ("k",)}) == []
    one.sql("DELETE FROM t WHERE k = 'a'")
    assert missing({"t": ("k",)}) == [0, 1]


NOT_COMMITTABLE = "a trial shows that the epoch could not commit"
SWALLOWED: dict[str, tuple[dict[str, Any], str, list[Row], str]] = {
    "append": (
        {}, "2 rows were sealed for t, but 1 arrived: a trigger or rule", [kv("b", 9), kv("a", 2)],
        "of the rows for t only 1 arrived in a trial",
    ),
    "append that skips": (
        {"key": "k", "repeats": "skip"}, "2 rows with new keys were to be inserted into t, but 1 were", [kv("c", 9)],
        NOT_COMMITTABLE,
    ),
    "upsert": (
        UPSERT, "2 rows were to be inserted into t.* but 1 were written", [kv("b", 9), kv("a", 2)], NOT_COMMITTABLE,
    ),
}  # fmt: skip
"""A sink, what its commit says of a swallowed row, rows that the next seal refuses, and what the seal says."""


@pytest.mark.parametrize("mode", SWALLOWED)
def test_a_trigger_that_swallows_rows_is_found(bench: NewBench, mode: str) -> None:
    """INV-9: at the seal, and by the commit where it came after the seal; once it is gone the same epoch commits."""
    sink, at_commit, refused, at_seal = SWALLOWED[mode]
    one = bench(**sink)
    one.sql("CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    trigger = "CREATE TRIGGER swallow BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.v = 9) EXECUTE FUNCTION swallow()"
    sealed = one.sealed(kv("a", 1), kv("b", 9))
    one.sql(trigger)

    with pytest.raises(TargetError, match=at_commit):
        one.commit(sealed)
    assert one.rows() == []
    assert one.state(sealed) is EpochState.PRE_COMMITTED

    one.sql("DROP TRIGGER swallow ON t")
    assert one.commit(sealed).outcome is CommitOutcome.COMMITTED
    assert one.rows() == [("a", 1), ("b", 9)]
    one.sql(trigger)
    with pytest.raises(SealRefusedError, match=f"{at_seal}: .* drops rows"):
        one.sealed(*refused)


def test_a_trigger_that_leaves_a_sum_as_it_was_is_found(bench: NewBench) -> None:
    """INV-9: at the seal, and by the commit, although the statement counts the right number of rows."""
    one = bench(**ADD)
    one.sql("CREATE FUNCTION frozen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v = OLD.v; RETURN NEW; END'")
    trigger = "CREATE TRIGGER frozen BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION frozen()"
    one.epoch(kv("a", 1))
    sealed = one.sealed(kv("a", 2))
    one.sql(trigger)

    with pytest.raises(TargetError, match="1 keys have another sum than is due"):
        one.commit(sealed)
    assert one.rows() == [("a", 1)]

    one.sql("DROP TRIGGER frozen ON t")
    one.commit(sealed)
    assert one.rows() == [("a", 3)]
    one.sql(trigger)
    with pytest.raises(SealRefusedError, match="1 keys have another sum than is due"):
        one.sealed(kv("a", 2))


def test_a_table_that_exists_needs_a_unique_index_on_exactly_the_key(bench: NewBench) -> None:
    one = bench(existing=f"CREATE TABLE t (k text NOT NULL, v int{LINEAGE})", key="k", repeats="skip")
    with pytest.raises(TargetError, match=r"needs a unique index or primary key on exactly \(k\)"):
        one.plan(kv("a", 1))

    one.sql("CREATE UNIQUE INDEX ON t (k)")
    one.epoch(kv("a", 1), kv("a", 2))

    assert one.rows() == [("a", 1)]


COUNTS = ("inserted", "updated", "deleted", "superseded", "unchanged")
OLD_ROWS = "CREATE TABLE t (k text PRIMARY KEY, v int); INSERT INTO t VALUES ('a', 1), ('b', 1), ('z', 1);"
LINEAGE_ADDED = "ALTER TABLE t ADD _topic text, ADD _partition int, ADD _offset bigint, ADD _row int, ADD _epoch bigint"


def counts(one: Bench, epoch_id: int) -> dict[str, int]:
    [row] = one.sql(f"SELECT {', '.join(COUNTS)} FROM epochline.receipts WHERE epoch_id = {epoch_id}")
    return {name: count for name, count in zip(COUNTS, row, strict=True) if count}


def test_rows_from_before_their_lineage_columns_are_older_than_every_record(bench: NewBench) -> None:
    """INV-9: the ALTER TABLE that the plan's error recommends leaves NULL in old rows; they refuse no newer record."""
    one = bench(existing=OLD_ROWS, **UPSERT)
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
    one = bench(record, existing=existing, **UPSERT, order_by="at", lineage=False)

    one.epoch(kv("a", 2, at=5), kv("b", None, at=5, _deleted=True))

    assert one.rows("k, v, at, _order_at") == [("a", 2, 5, 5)]
    assert counts(one, 1) == {"updated": 1, "deleted": 1}


@pytest.mark.parametrize("superseded", [False, True], ids=["first generation", "a later generation"])
def test_a_row_without_its_epoch_is_of_no_generation(bench: NewBench, superseded: bool) -> None:
    one = bench(existing=OLD_ROWS + LINEAGE_ADDED, **UPSERT)
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
    one = bench(**UPSERT, order_by="v").after([kv("newer", 9), kv("gone", 9), kv("b", 1), kv("c", 1)])
    one.epoch(kv("gone", 10, _deleted=True))
    assert counts(one, 1) == {"inserted": 4}
    assert counts(one, 2) == {"deleted": 1}

    gone = [kv("c", 2, _deleted=True), kv("never there", 1, _deleted=True)]
    one.epoch(kv("a", 1), kv("a", 2), kv("newer", 3), kv("gone", 3), kv("b", 2), *gone)

    assert one.rows() == [("a", 2), ("b", 2), ("newer", 9)]
    assert counts(one, 3) == {"inserted": 1, "updated": 1, "deleted": 1, "superseded": 3, "unchanged": 1}
    with pytest.raises(errors.CheckViolation, match="every_row_is_accounted_for"):
        one.sql(f"{BY_HAND}; UPDATE epochline.receipt SET inserted = 2 WHERE epoch_id = 3")


def test_a_row_that_another_program_made_newer_after_the_seal_is_counted_as_superseded(bench: NewBench) -> None:
    """INV-9: the one statement leaves a key out, so what becomes of each row is predicted."""
    one = bench(**UPSERT).after([kv("a", 1), kv("b", 1)])
    sealed = one.sealed(kv("a", 2), kv("b", 2), kv("b", 3))
    one.sql("UPDATE t SET _offset = 100 WHERE k = 'a'")

    one.commit(sealed)

    assert one.rows("k, v") == [("a", 1), ("b", 3)]
    assert counts(one, 2) == {"updated": 1, "superseded": 2}


def test_a_key_that_another_program_inserts_during_the_commit_is_updated(bench: NewBench) -> None:
    """INV-9: the one statement meets the key's index, and the whole epoch is written and counted again."""
    one = bench(existing=OLD_ROWS + LINEAGE_ADDED, **UPSERT)
    sealed = one.sealed(kv("a", 2), kv("c", 2), kv("d", 2))
    with closing(in_public(one.dsn)) as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO t (k, v) VALUES ('c', 7)")
        later = Timer(0.5, other.commit)
        later.start()
        one.commit(sealed)
        later.join()

    assert one.rows("k, v") == [("a", 2), ("b", 1), ("c", 2), ("d", 2), ("z", 1)]
    assert counts(one, 1) == {"inserted": 1, "updated": 2}


def test_two_rows_that_are_equal_to_one_key_are_not_both_updated(bench: NewBench) -> None:
    """INV-9: an index may tell apart what ``=`` does not. A second record of the key would balance the second row."""
    existing = (
        f"CREATE TYPE c AS (n numeric); CREATE TABLE t (k c NOT NULL, v int{LINEAGE});"
        "CREATE UNIQUE INDEX ON t (k record_image_ops); INSERT INTO t (k, v) VALUES ('(1.0)', 0), ('(1.00)', 0)"
    )
    one = bench(existing=existing, **UPSERT).after([kv("(2)", 1), kv("(2)", 2)])

    with pytest.raises(SealRefusedError, match="a trial shows that the epoch could not commit"):
        one.sealed(kv("(1.0)", 1), kv("(1.0)", 2))

    assert one.rows("k::text, v") == [("(1.0)", 0), ("(1.00)", 0), ("(2)", 2)]


def test_without_the_guard_the_balance_does_not_close(bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken away: what used to vanish with a green receipt is neither written nor known to be old."""
    one = bench(existing=OLD_ROWS + LINEAGE_ADDED, **UPSERT)
    sealed = one.sealed(kv("a", 2), kv("c", 2))
    monkeypatch.setattr(fates, "_newer", lambda left, right: sql.SQL("(({}) > ({}))").format(left, right))

    with pytest.raises(TargetError, match="of 2 rows staged for t, 1 are neither newer nor older"):
        one.commit(sealed)

    assert one.rows("k, v") == [("a", 1), ("b", 1), ("z", 1)]
    monkeypatch.undo()
    one.commit(sealed)
    assert counts(one, 1) == {"inserted": 1, "updated": 1}
