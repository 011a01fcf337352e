"""What a sink mode means (protocol), on real PostgreSQL: rows staged as Spark would, applied by the use cases."""

import re
from decimal import Decimal
from typing import Any

import pytest

from epochline import PostgresTable
from epochline.coordinator import PlanOutcome, plan
from epochline.errors import SealRefusedError, StagingLostError, TargetError
from epochline.protocol.epoch import EpochState
from tests.contract.worlds import run
from tests.databases import holding
from tests.driver import epoch_of
from tests.integration.bench import ADD, KV, LINEAGE, UPSERT, NewBench, Row, kv
from tests.integration.logins import AsSuperuser, Login, user

VERSIONED = {"k": "text", "version": "integer", "v": "integer"}
PLAIN = "CREATE TABLE t (k text, v int"


def test_append_keeps_every_row_with_its_record_and_epoch(bench: NewBench) -> None:
    """S16."""
    one = bench()

    one.epoch(kv("a", 1), kv("a", 1), kv(None, 2, _partition=1))
    one.epoch(kv("a", 1))

    lineage = "_topic, _partition, _offset, _row, _epoch"
    assert one.sql(f"SELECT k, v, {lineage} FROM t ORDER BY _epoch, _partition, _offset") == [
        ("a", 1, "orders", 0, 0, 0, 1), ("a", 1, "orders", 0, 1, 0, 1), (None, 2, "orders", 1, 0, 0, 1),
        ("a", 1, "orders", 0, 2, 0, 2),
    ]  # fmt: skip


def test_a_table_that_exists_is_filled_by_name_and_its_serial_and_default_fill_themselves(bench: NewBench) -> None:
    """E2: ``t_test(id bigserial, value, insert_time)``; ids may have gaps, the seal tries the rows."""
    existing = (
        "CREATE TABLE t (id bigserial PRIMARY KEY, v int, at timestamptz NOT NULL DEFAULT now(),"
        " twice int GENERATED ALWAYS AS (v * 2) STORED)"
    )
    one = bench({"v": "integer", "unknown_to_the_table": "text"}, existing=existing, lineage=False)

    one.epoch({"v": 5}, {"v": 7})

    assert one.rows("v, twice, at IS NOT NULL") == [(5, 10, True), (7, 14, True)]
    assert one.sql("SELECT count(DISTINCT id) FROM t") == [(2,)]


def test_of_one_key_the_highest_offset_wins_within_and_across_epochs(bench: NewBench) -> None:
    """E3."""
    one = bench(**UPSERT)

    first = one.epoch(kv("a", 1), kv("b", 1), kv("a", 2))
    second = one.epoch(kv("a", 3), kv("c", 1, _partition=1))

    assert one.rows("k, v, _offset, _epoch") == [("a", 3, 3, 2), ("b", 1, 1, 1), ("c", 1, 0, 2)]
    assert (first.epoch.rows_written, second.epoch.rows_written) == (2, 2)


FROM_TWO_PARTITIONS = {
    "in one epoch": ([], [kv("a", 1), kv("a", 2, _partition=1)]),
    "the target has it": ([kv("a", 1)], [kv("a", 2, _partition=1)]),
    "the target had it": ([kv("a", None, _deleted=True)], [kv("a", 2, _partition=1)]),
}


@pytest.mark.parametrize(("before", "rows"), FROM_TWO_PARTITIONS.values(), ids=FROM_TWO_PARTITIONS)
def test_a_key_from_two_partitions_is_refused_at_the_seal(bench: NewBench, before: list[Row], rows: list[Row]) -> None:
    one = bench(**UPSERT)
    if before:
        one.epoch(*before)

    with pytest.raises(SealRefusedError, match="Declare order_by for this sink. Nothing was sealed"):
        one.sealed(*rows)


def gone(k: str, **more: Any) -> Row:
    return kv(k, None, _deleted=True, **more)


BY_V, BY_VERSION = {"order_by": "v", **UPSERT}, {"record": VERSIONED, "order_by": "version", **UPSERT}
Steps = list[tuple[list[Row], list[tuple[str, int]]]]
"""Per epoch, its rows and what the table shows afterwards."""
HISTORIES: dict[str, tuple[dict[str, Any], Steps]] = {
    "a declared order is total across partitions and epochs": (BY_V, [
        ([kv("a", 5), kv("a", 9, _partition=1), kv("a", 7)], [("a", 9)]), ([kv("a", 8)], [("a", 9)]),
        ([kv("a", 10, _partition=1)], [("a", 10)]),
    ]),
    "of equal orders the later record of a partition wins": (BY_VERSION, [
        ([kv("a", 1, version=1), kv("a", 2, version=1)], [("a", 2)]), ([kv("a", 3, version=1)], [("a", 3)]),
    ]),
    "after a delete an older record does not bring the row back and a newer one does": (BY_VERSION, [
        ([kv("a", 1, version=1)], [("a", 1)]), ([gone("a", version=5)], []), ([kv("a", 4, version=4)], []),
        ([kv("a", 6, version=6)], [("a", 6)]), ([gone("a", version=3)], [("a", 6)]),
    ]),
}  # fmt: skip
HISTORIES |= {
    f"{name}, without lineage": ({**sink, "lineage": False}, steps) for name, (sink, steps) in HISTORIES.items()
}
HISTORIES |= {
    "a table that exists without order columns keeps order within an epoch alone": (
        {**BY_V, "lineage": False, "existing": "CREATE TABLE t (k text PRIMARY KEY, v int)"},
        [([kv("a", 9), kv("a", 7)], [("a", 9)]), ([kv("a", 8)], [("a", 8)])],
    ),
    "a tombstone deletes and a later record brings the row back": (UPSERT, [
        ([kv("a", 1), kv("b", 1)], [("a", 1), ("b", 1)]), ([gone("a")], [("b", 1)]), ([kv("a", 2)], [("a", 2), ("b", 1)]),
        ([kv("c", 1), gone("c"), gone("d"), kv("d", 2)], [("a", 2), ("b", 1), ("d", 2)]),
    ]),
}  # fmt: skip


def test_a_plan_says_which_table_forgets_the_declared_order(bench: NewBench) -> None:
    """`epochline plan` and `validate` name the column that keeps an older record from replacing a newer row."""
    it = bench(existing=f"CREATE TABLE t (k text PRIMARY KEY, v int{LINEAGE})", **BY_V)

    (note,) = it.preview().notes

    assert "in a later epoch an older record replaces a newer row" in note
    it.sql(note.split("Run ")[1])
    assert it.preview().notes == ()
    assert it.after([kv("a", 9)], [kv("a", 8)]).rows() == [("a", 9)]


@pytest.mark.parametrize("history", HISTORIES)
def test_an_upsert_shows_of_each_key_the_record_that_its_order_says(bench: NewBench, history: str) -> None:
    sink, steps = HISTORIES[history]
    one = bench(**sink)

    for rows, shown in steps:
        one.epoch(*rows)
        assert one.rows() == shown


def test_sums_are_added_per_key_and_a_missing_value_counts_as_nothing(bench: NewBench) -> None:
    """E6."""
    record = {"k": "text", "hits": "bigint", "paid": "numeric(9,2)"}
    one = bench(record, mode="add", key="k", measures=("hits", "paid"))

    rows = [("a", 1, Decimal("0.10")), ("a", 2, None), ("b", None, None)]
    one.epoch(*(dict(zip(record, row, strict=True)) for row in rows))
    one.sql("UPDATE t SET paid = NULL WHERE k = 'b'")
    one.epoch({"k": "a", "hits": 3, "paid": Decimal("0.20")}, {"k": "b", "hits": 1, "paid": Decimal(1)})

    assert one.rows("k, hits, paid") == [("a", 6, Decimal("0.30")), ("b", 1, Decimal("1.00"))]


LIMITS = {
    "smallint": ("smallint", 32766, 1), "integer": ("integer", 2**31 - 2, 1), "bigint": ("bigint", 2**63 - 2, 1),
    "bigint below": ("bigint", -(2**63) + 1, -1), "numeric": ("numeric(3,0)", 998, 1),
    "numeric with scale": ("numeric(4,2)", Decimal("99.98"), Decimal("0.01")),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "there", "most"), LIMITS.values(), ids=LIMITS)
def test_a_sum_that_just_fits_is_committed_and_one_more_is_refused_at_the_seal(
    bench: NewBench, kind: str, there: Any, most: Any
) -> None:
    one = bench({"k": "text", "v": kind}, **ADD).after([kv("a", there)], [kv("a", most)])
    assert one.rows() == [("a", there + most)]

    with pytest.raises(SealRefusedError, match="a sum of v would not fit .*Use a wider column"):
        one.sealed(kv("a", most))


def test_add_to_a_table_that_exists_fills_key_and_measures_alone(bench: NewBench) -> None:
    existing = "CREATE TABLE t (k text PRIMARY KEY, v int, note text NOT NULL DEFAULT 'none')"
    one = bench({"k": "text", "v": "integer", "note": "text"}, existing=existing, **ADD)

    one.epoch(kv("a", 1), kv("a", 2))

    assert one.rows("k, v, note") == [("a", 3, "none")]


def test_replace_puts_the_epochs_rows_in_place_of_all_and_an_open_snapshot_still_reads_these(bench: NewBench) -> None:
    """INV-2: it is not TRUNCATE; at any isolation level, a reader sees all of an epoch or nothing of it."""
    one = bench(mode="replace").after([kv("a", 1), kv("b", 2)])
    with holding(one.dsn, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ") as reader:
        reader.execute("SELECT 1 FROM epochline.heads")  # takes the snapshot, and no lock on the target

        receipt = one.epoch(kv("c", 3))

        reader.execute("SELECT k, v FROM public.t ORDER BY k")
        assert reader.fetchall() == [("a", 1), ("b", 2)]
    assert one.rows("k, v, _epoch") == [("c", 3, 2)]
    assert receipt.epoch.rows_written == 1


NULLS = {
    "key of an upsert": (UPSERT, kv(None, 1), r"its key \(k\)"),
    "key of sums": (ADD, kv(None, 1), r"its key \(k\)"),
    "column that takes none": ({"existing": f"{PLAIN} NOT NULL)", "lineage": False}, kv("a", None), "one of v"),
    # It would come neither before nor after any other record.
    "declared order": ({"order_by": "v", **UPSERT}, kv("a", None), r"its order_by \(_order_v\)"),
}


@pytest.mark.parametrize(("sink", "row", "where"), NULLS.values(), ids=NULLS)
def test_a_null_in_a_key_an_order_or_a_column_that_takes_none_is_never_sealed(
    bench: NewBench, sink: dict[str, Any], row: Row, where: str
) -> None:
    with pytest.raises(SealRefusedError, match=f"NULL in {where}"):
        bench(**sink).sealed(kv("a", 1), row)


def test_a_replace_that_a_table_pointing_here_would_refuse_is_never_sealed(bench: NewBench) -> None:
    existing = f"{PLAIN} UNIQUE); INSERT INTO t VALUES ('x', 7); CREATE TABLE r (v int REFERENCES t (v)); INSERT INTO r VALUES (7)"
    one = bench(mode="replace", lineage=False, existing=existing)

    with pytest.raises(SealRefusedError, match="r_v_fkey"):
        one.sealed(kv("b", 2))


KEYED = {"mode": "upsert", "key": "k", "lineage": False}
UNFIT = {
    "missing": ("SELECT 1", {}, "t does not exist. Create it"),
    "column missing": ("CREATE TABLE t (k text)", {"columns": KV}, "v integer is missing.*alter the table or"),
    "column of another type": (f"{PLAIN})", {"columns": {"k": "text", "v": "bigint"}}, "v is integer, declared as bigint"),
    "generated column": ("CREATE TABLE t (k text, v int GENERATED ALWAYS AS (1) STORED)", {"columns": KV}, "v is generated"),
    "no lineage": (f"{PLAIN})", {}, "lacks _topic text, .*, or declare the sink with lineage=False"),
    "nothing in common": ("CREATE TABLE t (x int)", {"lineage": False}, "no column that the record has. The record has k, v"),
    "not null unfilled": (f"{PLAIN}, x int NOT NULL)", {"lineage": False}, "x is NOT NULL without a default"),
    "no key": (f"{PLAIN})", KEYED, r"needs a unique index or primary key on exactly \(k\). Create it"),
    "wider key": (f"{PLAIN}, PRIMARY KEY (k, v))", KEYED, r"on exactly \(k\)"),
    "partial key": (f"{PLAIN}); CREATE UNIQUE INDEX ON t (k) WHERE v > 0", KEYED, r"on exactly \(k\)"),
    "nullable key": (f"{PLAIN}, UNIQUE (k))", KEYED, "key column k may be NULL. Make it NOT NULL"),
    "key not there": ("CREATE TABLE t (v int)", KEYED, "has no column k, which the declaration names as its key"),
    "float measure": ("CREATE TABLE t (k text PRIMARY KEY, v real)", ADD, "measure v real: only integer and numeric columns add exactly"),
    "text measure": ("CREATE TABLE t (k text PRIMARY KEY, v text)", ADD, "measure v text: only integer and numeric columns add exactly"),
    "type that cannot be carried": ("CREATE TYPE pair AS (a money); CREATE TABLE t (k text, v pair)", {"lineage": False}, "column v is pair, .*ALTER COLUMN v TYPE"),
    "unknown key": (f"{PLAIN}{LINEAGE}, PRIMARY KEY (k))", {"columns": KV}, r"declaration does not know: t_pkey \(k\).*leave out `columns`"),
    "unknown key for some rows": (f"{PLAIN}{LINEAGE}); CREATE UNIQUE INDEX some_rows ON t (k) WHERE v > 0", {"columns": KV}, r"some_rows \(k\)"),
    "unknown deferred key": (f"{PLAIN}{LINEAGE}, CONSTRAINT c UNIQUE (k, _epoch) DEFERRABLE)", {"columns": KV}, r"c \(k, _epoch\)"),
    "unknown key of an expression": (f"{PLAIN}{LINEAGE}); CREATE UNIQUE INDEX low ON t (lower(k))", {"columns": KV}, "low"),
    "view": ("CREATE VIEW t AS SELECT 'a'::text AS k, 1 AS v", {"lineage": False}, "t: is not a table"),
}  # fmt: skip


@pytest.mark.parametrize(("table", "sink", "said"), UNFIT.values(), ids=UNFIT)
def test_a_target_that_does_not_fit_is_refused_at_the_plan_with_the_fix(
    bench: NewBench, table: str, sink: dict[str, Any], said: str
) -> None:
    with pytest.raises(TargetError, match=said):
        bench(existing=table, **sink).plan(kv("a", 1))


@pytest.mark.parametrize(("values", "kept"), [
    ("timestamp", "date"), ("timestamp", "timestamp(0)"), ("timestamptz", "timestamptz(3)"), ("bigint", "real"),
    ("bigint", "integer"), ("numeric", "numeric(9,2)"), ("numeric(9,2)", "numeric(9,1)"), ("integer", "text"),
    ("text", "varchar(3)"), ("integer", "mood"), ("timestamptz", "timestamp"),
])  # fmt: skip
def test_an_order_that_its_column_would_round_is_refused_at_the_plan(bench: NewBench, values: str, kept: str) -> None:
    """INV-9: an older record of a later epoch would have the same order as the newer one, and replace it."""
    table = "CREATE TYPE mood AS ENUM ('sad');"
    table += f" CREATE TABLE t (k text PRIMARY KEY, v int, o {values}, _order_o {kept}{LINEAGE})"
    record = {**KV, "o": values}

    with pytest.raises(TargetError, match="ALTER TABLE t ALTER COLUMN _order_o TYPE"):
        bench(record, existing=table, order_by="o", **UPSERT).plan(kv("a", 1))


@pytest.mark.parametrize(("values", "kept", "newer", "older"), [
    ("smallint", "bigint", 2, 1), ("integer", "numeric", 2, 1), ("real", "double precision", 2.5, 2.25),
    ("varchar(3)", "text", "b", "a"), ("timestamptz(0)", "timestamptz", "2024-01-02Z", "2024-01-01Z"),
    ("numeric(9,2)", "numeric(12,4)", "1.02", "1.01"), ("date", "date", "2024-01-02", "2024-01-01"),
])  # fmt: skip
def test_an_order_may_be_kept_in_a_wider_type(bench: NewBench, values: str, kept: str, newer: Any, older: Any) -> None:
    """Of two epochs the record with the higher order wins."""
    table = f"CREATE TABLE t (k text PRIMARY KEY, v int, o {values}, _order_o {kept}{LINEAGE})"
    it = bench({**KV, "o": values}, existing=table, order_by="o", **UPSERT)

    it.after([kv("a", 1, o=newer)], [kv("a", 2, o=older)])

    assert it.rows() == [("a", 1)]


def test_a_table_of_deleted_keys_that_its_target_has_outgrown_is_refused_until_it_is_altered(bench: NewBench) -> None:
    """INV-9: rounded, a deletion of 1.25 would be one of 1, whose records would count as older than it."""
    table = f"CREATE TABLE t (k numeric(4,0) PRIMARY KEY, v int, _order_v int{LINEAGE})"
    it = bench({"k": "numeric", "v": "integer"}, existing=table, **BY_V).after([kv(7, 1)])
    it.sql("ALTER TABLE t ALTER k TYPE numeric(6,2)")

    with pytest.raises(TargetError, match=r"k is numeric\(4,0\), and its values are numeric\(6,2\)") as raised:
        it.plan(kv("1.25", 1))

    [alter] = re.findall(r"Run (ALTER TABLE epochline\.deleted_.*)\. To go on", str(raised.value))
    it.sql(alter)
    it.after([kv("1.25", 1), kv("1.25", 9, _deleted=True)], [kv(1, 5)])
    assert it.rows("k::text, v") == [("1.00", 5), ("7.00", 1)]


KEYS_THAT_NO_RECORD_BREAKS = {
    "filled by the database": "id bigserial PRIMARY KEY",
    "the record's position": "UNIQUE (_topic, _partition, _offset, _row)",
}


@pytest.mark.parametrize("key", KEYS_THAT_NO_RECORD_BREAKS.values(), ids=KEYS_THAT_NO_RECORD_BREAKS)
def test_a_key_that_no_record_can_break_is_no_reason_to_refuse_a_table(bench: NewBench, key: str) -> None:
    one = bench(existing=f"{PLAIN}{LINEAGE}, {key})", columns=KV)

    one.epoch(kv("a", 1), kv("a", 1))

    assert one.rows() == [("a", 1), ("a", 1)]


def test_a_table_of_another_programs_role_is_written_only_if_it_is_declared_without_columns(
    bench: NewBench, login: Login, as_superuser: AsSuperuser
) -> None:
    """Neither migrate nor a plan takes it for a table that Epochline made."""
    shop = user(login())
    one = bench(existing=f"{PLAIN}{LINEAGE}); INSERT INTO t VALUES ('of the shop', 1)")
    as_superuser(f"ALTER TABLE public.t OWNER TO {shop}", f"GRANT ALL ON public.t TO {user(one.dsn)}")
    made = one.pipeline.model_copy(update={"sinks": (PostgresTable(table="t", columns=KV),)})

    with pytest.raises(TargetError, match=f"orders: target t belongs to the role {shop}.*leave out `columns`"):
        plan(one.ledger, one.kafka, made, run("run-0"))
    with pytest.raises(TargetError, match=f"belongs to the role {shop}"), one.ledger.transaction() as tx:
        tx.targets.create(made)
    assert one.sql("SELECT count(*) FROM epochline.epoch") == [(0,)]

    one.epoch(kv("a", 1))
    assert one.rows() == [("a", 1), ("of the shop", 1)]


def test_an_existing_target_altered_since_the_plan_says_what_it_was_and_is(bench: NewBench) -> None:
    one = bench(existing=f"{PLAIN})", lineage=False)
    planned = one.sealed(kv("a", 1))
    one.sql("ALTER TABLE t DROP COLUMN v")

    with pytest.raises(TargetError, match="then k text, v integer, now k text.*Put the table back, or abort the epoch"):
        one.commit(planned)

    one.sql("ALTER TABLE t ADD COLUMN v integer")
    one.commit(planned)
    assert one.rows() == [("a", 1)]


@pytest.mark.parametrize(
    ("damage", "said"),
    [("DELETE FROM", "holds 0"), ("TRUNCATE", "holds 0"), ("DROP TABLE", "is gone")],
    ids=["rows deleted", "truncated", "dropped"],
)
def test_a_sealed_epoch_whose_staging_is_lost_is_aborted_and_read_again(
    bench: NewBench, damage: str, said: str
) -> None:
    """INV-6."""
    one = bench()
    planned = one.sealed(kv("a", 1))
    [(table,)] = one.sql("SELECT table_name FROM epochline.staging WHERE sink = 't' AND dropped_at IS NULL")
    one.sql(f"{damage} epochline_staging.{table}")

    with pytest.raises(StagingLostError, match=f"1 rows were sealed for t, but its staging table {said}"):
        one.commit(planned)
    assert one.state(planned) is EpochState.ABORTED
    assert one.rows() == []

    again = plan(one.ledger, one.kafka, one.pipeline, epoch_of(planned).run)
    assert (again.outcome, again.ranges) == (PlanOutcome.REOPENED, planned.ranges)
    one.commit_staged(again, kv("a", 1))
    assert one.rows() == [("a", 1)]


@pytest.mark.parametrize(
    "sink", [{}, {"mode": "upsert", "key": "_id"}, {"mode": "replace"}], ids=["append", "upsert", "replace"]
)
def test_a_members_underscore_keeps_it_out_of_no_table_that_exists(bench: NewBench, sink: dict[str, Any]) -> None:
    """INV-9: MongoDB's ``_id`` was never filled there, and nothing said so."""
    existing = f"CREATE TABLE t (_id text PRIMARY KEY, __v int, _epoch_of_birth date, noted timestamptz DEFAULT now(){LINEAGE})"
    one = bench({"_id": "text", "__v": "integer", "_epoch_of_birth": "date"}, existing=existing, **sink)

    one.epoch({"_id": "a", "__v": 1, "_epoch_of_birth": "1970-01-01"})

    assert one.rows("_id, __v, _epoch_of_birth::text, noted IS NULL, _offset") == [("a", 1, "1970-01-01", False, 0)]


def test_a_long_order_column_still_orders_across_epochs(bench: NewBench) -> None:
    """SEC-1: two names that PostgreSQL would cut to the same one stay apart."""
    first, second = "o" * 62 + "1", "o" * 62 + "2"
    one = bench({"k": "text", first: "integer", second: "integer"}, order_by=(first, second), **UPSERT)

    one.epoch({"k": "a", first: 5, second: 1})
    one.epoch({"k": "a", first: 4, second: 9})

    assert one.rows(f"k, {first}") == [("a", 5)]


def test_tables_are_made_as_declared_with_lineage_and_order_columns(bench: NewBench) -> None:
    one = bench({"k": "varchar(9)", "v": "numeric(9,2)"}, table="shop.t", mode="upsert", key="k", order_by="v")

    found = one.sql(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_attribute a"
        " WHERE a.attrelid = 'shop.t'::regclass AND a.attnum > 0 ORDER BY a.attnum"
    )

    assert found == [
        ("k", "character varying(9)", True), ("v", "numeric(9,2)", False), ("_topic", "text", False),
        ("_partition", "integer", False), ("_offset", "bigint", False), ("_row", "integer", False),
        ("_epoch", "bigint", False), ("_order_v", "numeric(9,2)", False),
    ]  # fmt: skip
    assert one.made[0] == "shop.t"
    assert one.made[1].startswith("the side table of deleted keys of ")


def test_making_tables_again_makes_and_alters_nothing(bench: NewBench) -> None:
    one = bench(existing=f"CREATE TABLE t (k text, v int, note text{LINEAGE})", columns=KV)
    assert one.made == []

    with one.ledger.transaction() as tx:
        assert tx.targets.create(one.pipeline) == []

    assert one.sql("SELECT count(*) FROM information_schema.columns WHERE table_name = 't'") == [(8,)]
