"""What is sealed can commit: rules of a target that no value alone breaks are found by the seal, by real PostgreSQL.

Under `quarantine` the attempt fails and names the records; the next one sets them aside, in every sink, and commits.
Under `fail` the record is named. A row of a transform or a sum has no one record: it is kept for the ledger's owner.
"""

import itertools
import random
import string
from types import SimpleNamespace
from typing import Any

import pytest

from epochline import PostgresTable
from epochline.coordinator import Plan
from epochline.errors import BadRecordError, RecordsRefusedError, SealRefusedError, TargetError
from epochline.protocol import refused
from epochline.protocol.epoch import Run
from epochline.protocol.staging import StagingTicket
from tests.commands import Call
from tests.integration.bench import Row, kv
from tests.integration.guarantee import broken
from tests.integration.logins import AsSuperuser, Login, user
from tests.integration.refusing import LINEAGE, Target, requeue_planned, requeued

RECORD = {"k": "text", "v": "integer"}
UPSERT, SUMS = (
    PostgresTable(table="t", mode="upsert", key="k"), PostgresTable(table="t", mode="add", key="k", measures="v")
)  # fmt: skip
QUARANTINE = ("quarantine", "orders", "--connection", "epochline_postgres")
LONG = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=9000))
GOOD = [kv("a", 1), kv("b", 2)]
PARENT = "CREATE TABLE parent (k text PRIMARY KEY); INSERT INTO parent VALUES ('a'), ('b');"
RAISES = (
    "CREATE FUNCTION raises() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.v > 9 THEN RAISE 'too much'; END IF;"
    " RETURN NEW; END $$;"
)
RAISING = "CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION raises()"
RULES = {
    "check": ("v int CHECK (v < 10)", "", kv("c", 10), "check t_v_check"),
    "check with a function": ("v int, CHECK (length(k) < 5)", "", kv("ccccc", 1), "check t_k_check"),
    "check that fails": ("v int, CHECK (1 / (v - 10) < 99)", "", kv("c", 10), "DivisionByZero"),
    "foreign key": ("v int, FOREIGN KEY (k) REFERENCES parent", "", kv("c", 1), "violates foreign key constraint"),
    "deferred foreign key": (
        "v int, FOREIGN KEY (k) REFERENCES parent DEFERRABLE INITIALLY DEFERRED", "", kv("c", 1), "foreign key",
    ),
    "unique index": ("v int UNIQUE", "", kv("c", 2), "duplicate key value violates unique constraint"),
    "deferred unique": ("v int UNIQUE DEFERRABLE INITIALLY DEFERRED", "", kv("c", 2), "duplicate key value"),
    "partial unique": ("v int", "CREATE UNIQUE INDEX ON t (v) WHERE v > 1", kv("c", 2), "duplicate key value"),
    "unique expression": ("v int", "CREATE UNIQUE INDEX ON t (lower(k))", kv("A", 3), "duplicate key"),
    "exclusion": ("v int, EXCLUDE USING btree (v WITH =)", "", kv("c", 1), "conflicting key value violates exclusion"),
    "trigger": ("v int", RAISES + RAISING, kv("c", 10), "too much"),
    "no partition": (
        "v int) PARTITION BY RANGE (v", "CREATE TABLE few PARTITION OF t FOR VALUES FROM (0) TO (10)", kv("c", 10),
        'no partition of relation "t" found for row',
    ),
    "generated column": ("v int, twice int GENERATED ALWAYS AS (v * 2) STORED", "", kv("c", 2_000_000_000), "Numeric"),
    "long value in an index": ("v int", "CREATE INDEX ON t (k)", kv(LONG, 1), "index row"),
    "long value in an index over an expression": ("v int", "CREATE INDEX ON t ((k || 'x'))", kv(LONG, 1), "index row"),
    "index over a failing expression": ("v int", "CREATE INDEX ON t ((1 / (v - 3)))", kv("c", 3), "DivisionByZero"),
}  # fmt: skip


def under(dsn: str, rule: str, *more: Row, policy: str = "quarantine") -> Target:
    """Two good records, one that breaks the rule, and more."""
    columns, ddl, bad, _ = RULES[rule]
    made = f"{PARENT} CREATE TABLE t (k text, {LINEAGE}, {columns}); {ddl}"
    return Target(dsn, made, [*GOOD, bad, *more], policy=policy)


@pytest.mark.fault("F28")
@pytest.mark.parametrize("rule", RULES)
def test_a_record_that_breaks_a_rule_of_the_target_is_set_aside_by_the_next_attempt(
    postgres_dsn: str, rule: str
) -> None:
    """INV-9: one attempt names it, the next one commits all others; the run after it has nothing to do."""
    it = under(postgres_dsn, rule, kv("d", 4))
    it.job.sql("INSERT INTO parent VALUES ('d')")

    [said] = it.sealed_after_attempts()

    # Of two rows that cannot both be there, the later record's is refused.
    assert "orders-0 offset 2 for t: " in said
    assert RULES[rule][-1] in said
    assert it.rows() == [("a", 1), ("b", 2), ("d", 4)]
    [(offset, reason)] = it.quarantined()
    assert (offset, reason.startswith("t: ")) == (2, True)
    assert broken(it.job.sql, "orders", "t") == {}
    assert LONG[:50] not in said


@pytest.mark.parametrize("rule", RULES)
def test_under_the_policy_fail_the_record_is_named_and_nothing_is_sealed(postgres_dsn: str, rule: str) -> None:
    """F28: the same attempt after attempt, until the rule or the record is mended."""
    it = under(postgres_dsn, rule, policy="fail")

    for _ in range(2):
        refusal = it.refused()
        assert "orders-0 offset 2 for t: " in refusal
        assert RULES[rule][-1] in refusal
        assert "policy for bad records is 'fail'" in refusal

    assert it.job.sql("SELECT * FROM epochline.refused_row") == []


def test_many_records_are_found_at_once_and_left_out_of_every_sink(postgres_dsn: str) -> None:
    """INV-9, C3: both tables show the same records; the balance holds with what was set aside."""
    values = [kv(f"k{n}", 10 if n % 7 == 0 else 1) for n in range(200)]
    sinks = [PostgresTable(table="t"), PostgresTable(table="copies", columns=RECORD)]
    it = Target(postgres_dsn, f"{RAISES} CREATE TABLE t (k text, v int, {LINEAGE}); {RAISING}", values, sinks)

    [said] = it.sealed_after_attempts()

    assert "and 24 more" in said
    assert len(it.quarantined()) == 29
    assert len(it.rows()) == len(it.rows("copies")) == 171
    assert broken(it.job.sql, "orders", "t") == {}


MANY = {
    "foreign key": (
        "v int REFERENCES few", "CREATE TABLE few (v int PRIMARY KEY); INSERT INTO few SELECT generate_series(1, 300000)",
    ),
    "unique index": ("v int UNIQUE", ""),
    "unique index of an upsert": ("v int UNIQUE", ""),
    "trigger": ("v int", RAISES.replace("> 9", "< 1")),
}  # fmt: skip


def with_many(number: int, every: int, block: range) -> tuple[list[Row], set[int]]:
    """Records, and the offsets of those that each of the `MANY` rules refuses: some close together, some apart."""
    bad = {at for at in range(1, number) if at % every == 0 or at in block}
    return [kv(f"k{at}", 0 if at in bad else at + 1) for at in range(number)], bad


@pytest.mark.parametrize(
    ("rule", "number", "every", "block"),
    [
        *[(rule, 6_000, 60, range(3_000, 4_000)) for rule in MANY],
        pytest.param("foreign key", 200_000, 40, range(0), marks=pytest.mark.slow),
    ],
)
def test_thousands_of_refused_records_cost_one_further_attempt(
    postgres_dsn: str, rule: str, number: int, every: int, block: range
) -> None:
    """INV-9: exactly these are in the quarantine, and all others in the table."""
    columns, before = MANY[rule]
    sink = UPSERT if "upsert" in rule else PostgresTable(table="t")
    key = ", PRIMARY KEY (k)" if sink.key else ""
    made = f"{before}; CREATE TABLE t (k text, {columns}, {LINEAGE}{key}); {RAISING if rule == 'trigger' else ''}"
    values, bad = with_many(number, every, block)
    if "unique" in rule:
        values[0] = kv("k0", 0)
    it = Target(postgres_dsn, made, values, [sink])

    [said] = it.sealed_after_attempts()

    assert f"and {len(bad) - 5} more" in said
    assert {offset for offset, _ in it.quarantined()} == bad
    assert it.rows(columns="_offset") == [(at,) for at in range(number) if at not in bad]
    # An upsert with further unique columns writes in a savepoint, which has its own transaction id.
    assert "upsert" in rule or broken(it.job.sql, "orders", "t") == {}


def test_a_key_that_is_too_long_for_its_index_is_set_aside(postgres_dsn: str) -> None:
    """INV-9: staging measured its text, and the seal of an upsert makes no index of keys that would refuse it."""
    ddl = f"CREATE TABLE t (k int[] PRIMARY KEY, v int, {LINEAGE})"
    record, long = {"k": "integer[]", "v": "integer"}, random.Random(1).choices(range(1000), k=680)
    it = Target(postgres_dsn, ddl, [kv([1], 1), kv(long, 2), kv([2], 3)], [UPSERT], record=record)

    [said] = it.sealed_after_attempts()

    assert "index row" in said
    assert it.rows() == [([1], 1), ([2], 3)]
    assert [offset for offset, _ in it.quarantined()] == [1]


def test_an_update_that_breaks_a_check_with_the_defaults_of_a_new_row_is_set_aside(postgres_dsn: str) -> None:
    """PostgreSQL compares the row that it would insert. The search for the record goes the way of the trial."""
    ddl = f"CREATE TABLE t (k text PRIMARY KEY, v int, x int DEFAULT 0, CHECK (x > 0 OR v < 5), {LINEAGE});"
    existing = "INSERT INTO t (k, v, x) VALUES ('a', 1, 1), ('c', 1, 1)"
    it = Target(postgres_dsn, ddl + existing, [kv("a", 9), kv("b", 2), kv("c", 3)], [UPSERT])

    [said] = it.sealed_after_attempts()

    assert "orders-0 offset 0 for t: " in said
    assert it.rows() == [("a", 1), ("b", 2), ("c", 3)]


def test_a_constraint_that_is_not_enforced_refuses_no_record_and_no_target(postgres_dsn: str) -> None:
    """INV-9: PostgreSQL 18 only keeps it as a description; its foreign key deletes no rows, either."""
    ddl = (
        f"{PARENT} CREATE TABLE t (k text, v int, {LINEAGE}, CHECK (v < 10) NOT ENFORCED,"
        " FOREIGN KEY (k) REFERENCES parent ON DELETE CASCADE NOT ENFORCED);"
    )
    columns = {"k": "text"}
    parent = PostgresTable(table="parent", mode="replace", columns=columns, lineage=False)
    it = Target(postgres_dsn, ddl, [kv("a", 1), kv("c", 10)], [PostgresTable(table="t"), parent])

    assert it.sealed_after_attempts() == []

    assert it.rows() == [("a", 1), ("c", 10)]
    assert it.quarantined() == []


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_record_that_only_a_refused_one_excludes_stays(postgres_dsn: str, mode: str) -> None:
    """Each overlaps the next one: the first stays, so the second does not, so the third does, and so on."""
    ddl = f"CREATE TABLE t (k text PRIMARY KEY, v int, EXCLUDE USING gist (int4range(v, v + 5) WITH &&), {LINEAGE})"
    sink = UPSERT if mode == "upsert" else PostgresTable(table="t")
    it = Target(postgres_dsn, ddl, [kv(f"k{at}", 4 * at) for at in range(7)], [sink])

    [said] = it.sealed_after_attempts()

    assert "conflicting key value violates exclusion constraint" in said
    assert [offset for offset, _ in it.quarantined()] == [1, 3, 5]
    assert it.rows(columns="v") == [(0,), (8,), (16,), (24,)]


PEOPLE = f"CREATE TABLE t (k text PRIMARY KEY, v int, p text, {LINEAGE});"
ENTRIES = f"CREATE TABLE t (k text, v int, p text, {LINEAGE});"
BALANCE = (
    "CREATE FUNCTION balance() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " IF (SELECT sum(v) FROM t WHERE k = NEW.k) <> 0 THEN RAISE 'unbalanced'; END IF; RETURN NEW; END $$;"
    "CREATE CONSTRAINT TRIGGER b AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION balance();"
)
WRITES = (
    "CREATE TABLE whole (k text PRIMARY KEY); CREATE TABLE part (k text REFERENCES whole DEFERRABLE INITIALLY DEFERRED);"
    "CREATE FUNCTION writes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO part VALUES (NEW.k);"
    " INSERT INTO whole VALUES (NEW.k); RETURN NEW; END $$;"
    "CREATE TRIGGER w AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION writes();"
)


def kvp(k: str, v: int, p: str | None = None) -> Row:
    return {"k": k, "v": v, "p": p}


INNOCENT = {
    "rows in a circle, beside an orphan and what refers to it": (
        PEOPLE + "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES t", [UPSERT],
        [kvp("a", 1, "b"), kvp("o", 2, "none"), kvp("b", 3, "a"), kvp("x", 4, "y"), kvp("p", 5, "o"), kvp("y", 6, "x")],
        [1, 4],
    ),
    "the child of a parent whose newest row is refused, and an older one is not": (
        PEOPLE + "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES t;" + RAISES + RAISING, [UPSERT],
        [kvp("child", 1, "parent"), kvp("parent", 2), kvp("parent", 10), kvp("parent", 11)], [2, 3],
    ),
    "a record whose value only a refused one takes": (
        PEOPLE + "ALTER TABLE t ADD UNIQUE (v); CREATE TABLE known (k text PRIMARY KEY);"
        "ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES known", [UPSERT],
        [kvp("a", 1, "none"), kvp("b", 1), kvp("c", 1)], [0, 2],
    ),
    "the children of sums": (
        ENTRIES + "ALTER TABLE t ADD UNIQUE (v); CREATE TABLE sums (k text PRIMARY KEY, v int);"
        "ALTER TABLE t ADD FOREIGN KEY (k) REFERENCES sums",
        [PostgresTable(table="t"), PostgresTable(table="sums", mode="add", key="k", measures="v")],
        [kvp("a", 1), kvp("b", 2), kvp("c", 2), kvp("a", 3)], [2],
    ),
    "rows of which a deferred trigger compares several": (
        ENTRIES + "ALTER TABLE t ADD UNIQUE (p);" + BALANCE, [PostgresTable(table="t")],
        [kvp("c", 0, "once"), kvp("a", 5), kvp("b", 7), kvp("d", 0, "once"), kvp("b", -7), kvp("a", -5)], [3],
    ),
    "rows of another table that a trigger writes, whose constraint is deferred": (
        ENTRIES + "ALTER TABLE t ADD UNIQUE (v);" + WRITES, [PostgresTable(table="t")],
        [kvp(f"k{at}", at % 5) for at in range(9)], [5, 6, 7, 8],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", INNOCENT)
def test_no_good_record_is_blamed_with_a_bad_one(postgres_dsn: str, case: str) -> None:
    """INV-9: one further attempt, and exactly the records without which all others fit are set aside."""
    ddl, sinks, values, bad = INNOCENT[case]
    it = Target(postgres_dsn, ddl, values, sinks, record={**RECORD, "p": "text"})

    assert len(it.sealed_after_attempts()) == 1

    assert [offset for offset, _ in it.quarantined()] == bad
    newest = {row["k"]: at for at, row in enumerate(values) if at not in bad}
    kept = sorted(newest.values()) if sinks == [UPSERT] else [at for at in range(len(values)) if at not in bad]
    assert it.rows(columns="_offset") == [(at,) for at in kept]


def test_what_a_target_refuses_without_any_row_is_no_records_fault(postgres_dsn: str) -> None:
    """INV-9: the records become rows once the trigger is gone."""
    ddl = (
        f"{ENTRIES} CREATE FUNCTION closed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'closed'; END $$;"
        "CREATE TRIGGER c BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION closed()"
    )
    it = Target(postgres_dsn, ddl, GOOD)

    assert "closed. No row alone is to blame" in it.refused()
    it.job.sql("DROP TRIGGER c ON t")
    it.job.epoch()

    assert it.quarantined() == []
    assert it.rows() == [("a", 1), ("b", 2)]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which each search has time for some dozens of tries."""
    seconds = itertools.count(step=10)
    monkeypatch.setattr(refused, "time", SimpleNamespace(monotonic=lambda: next(seconds)))


@pytest.mark.usefixtures("hurried")
def test_a_search_that_takes_too_long_reports_and_keeps_what_it_found(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-9: each attempt sets aside what the ones before it found, and finds more."""
    columns, before = MANY["foreign key"]
    values, bad = with_many(200, 60, range(100, 120))
    it = Target(postgres_dsn, f"{before}; CREATE TABLE t (k text, {columns}, {LINEAGE})", values)

    said = it.sealed_after_attempts(most=30)

    assert 2 <= len(said) < len(bad)
    assert {offset for offset, _ in it.quarantined()} == bad
    assert len(it.rows()) == len(values) - len(bad)
    assert any("seal.searches pipeline=orders epoch=1 checked=" in line for line in caplog.messages)
    assert broken(it.job.sql, "orders", "t") == {}


FAMILY = f"p int, k text, {LINEAGE}"
FAMILIES = {
    "two tables": f"CREATE TABLE parent (v int PRIMARY KEY, {FAMILY}); CREATE TABLE t (v int, FOREIGN KEY (p) REFERENCES"
    f" parent, {FAMILY})",
    "one table": f"CREATE TABLE t (v int PRIMARY KEY, FOREIGN KEY (p) REFERENCES t, {FAMILY})",
    "one partition": f"CREATE TABLE whole (v int PRIMARY KEY, FOREIGN KEY (p) REFERENCES whole, {FAMILY}) PARTITION BY"
    " RANGE (v); CREATE TABLE t PARTITION OF whole FOR VALUES FROM (0) TO (1000)",
}


def children_first(dsn: str, family: str = "two tables") -> Target:
    """A hundred children, then their parents, and a child without one."""
    children = [{"k": "child", "v": at, "p": 199 - at} for at in range(100)]
    parents = [{"k": "parent", "v": at} for at in range(100, 200)]
    sinks = [PostgresTable(table="t")]
    if family == "two tables":
        sinks = [PostgresTable(table="parent", mode="upsert", key="v"), *sinks]
    values = [*children, *parents, {"k": "orphan", "v": 500, "p": 999}]
    return Target(dsn, FAMILIES[family], values, sinks, record={**RECORD, "p": "integer"})


@pytest.mark.parametrize("family", FAMILIES)
def test_no_record_is_blamed_for_which_a_later_one_makes_room(postgres_dsn: str, family: str) -> None:
    it = children_first(postgres_dsn, family)

    [said] = it.sealed_after_attempts()

    assert "offset 200 for t" in said
    assert [offset for offset, _ in it.quarantined()] == [200]
    assert len(it.rows()) == 200


@pytest.mark.usefixtures("hurried")
def test_a_search_that_ends_before_that_is_known_blames_none(postgres_dsn: str) -> None:
    it = children_first(postgres_dsn)

    assert "No row was found to blame within 0:15:00: declare a longer commit_statement_timeout" in it.refused()

    assert it.job.sql("SELECT * FROM epochline.refused_row") == []


def test_rows_of_two_tables_that_need_each_other_are_tried_together(postgres_dsn: str) -> None:
    """A foreign key between two sinks of one epoch is no obstacle; a record that breaks one is left out of both."""
    ddl = (
        f"CREATE TABLE parent (k text PRIMARY KEY, v int CHECK (v < 10), {LINEAGE});"
        f"CREATE TABLE t (k text REFERENCES parent, v int, {LINEAGE})"
    )
    sinks = [PostgresTable(table="parent", mode="upsert", key="k"), PostgresTable(table="t")]
    it = Target(postgres_dsn, ddl, [*GOOD, kv("c", 10), kv("a", 3)], sinks)

    [said] = it.sealed_after_attempts()

    assert said.count("offset 2") == 1
    assert it.rows("parent") == [("a", 3), ("b", 2)]
    assert it.rows() == [("a", 1), ("a", 3), ("b", 2)]


def test_a_run_that_gave_up_blocks_no_later_one(postgres_dsn: str) -> None:
    """INV-6: without a second attempt the epoch is aborted, and the next run's first attempt sets the record aside."""
    it = Target(postgres_dsn, f"CREATE TABLE t (k text, v int UNIQUE, {LINEAGE})", [*GOOD, kv("c", 2)])

    assert "The next attempt sets these records aside" in it.refused()
    it.add(kv("d", 4))
    receipt = it.job.epoch()

    assert (receipt.epoch.epoch_id, receipt.epoch.counts.quarantined) == (2, 1)
    assert it.rows() == [("a", 1), ("b", 2), ("d", 4)]


def test_a_requeued_record_is_tried_again_and_refused_again_or_written(postgres_dsn: str) -> None:
    """F28, INV-9: the quarantine keeps the newer reason; once the rule is gone, the record becomes a row."""
    it = Target(postgres_dsn, f"CREATE TABLE t (k text, v int CHECK (v < 10), {LINEAGE})", [*GOOD, kv("c", 10)])
    it.sealed_after_attempts()

    [said] = requeued(it)
    assert "orders-0 offset 2 for t: check t_v_check" in said
    assert it.quarantined() == [(2, "t: check t_v_check")]
    it.job.sql("ALTER TABLE t DROP CONSTRAINT t_v_check")
    assert requeued(it) == []

    assert it.rows() == [("a", 1), ("b", 2), ("c", 10)]


# What no row is to blame for

WHOLE = {
    "exhausted sequence": (
        "k text, v int, id smallint NOT NULL DEFAULT nextval('ids')", "CREATE SEQUENCE ids START 9 MAXVALUE 9",
        "sequence ids, which fills id, has 1 values left, and 2 rows are staged",
    ),
    "exhausted column": (
        "k text, v int, id smallint NOT NULL DEFAULT nextval('ids')", "CREATE SEQUENCE ids START 32767",
        "has 1 values left",
    ),
    "exhausted identity": (
        "k text, v int, id int GENERATED BY DEFAULT AS IDENTITY (START 9 MAXVALUE 9)", "SELECT 1", "has 1 values left",
    ),
    "failing default": ("k text, v int, x int DEFAULT (1 / (length('') + 0))", "SELECT 1", "the default of x fails"),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_would_stop_every_row_is_refused_by_the_seal_with_what_to_do(postgres_dsn: str, name: str) -> None:
    """INV-9: an epoch that cannot commit is not sealed, and no record is set aside for it."""
    columns, before, said = WHOLE[name]
    it = Target(postgres_dsn, f"{before}; CREATE TABLE t ({columns}, {LINEAGE})", GOOD)

    assert said in it.refused()
    assert it.job.sql("SELECT * FROM epochline.refused_row") == []


def test_a_sequence_with_just_enough_values_is_enough(postgres_dsn: str) -> None:
    ddl = f"CREATE TABLE t (k text, v int, id int GENERATED ALWAYS AS IDENTITY (MAXVALUE 2), {LINEAGE})"
    it = Target(postgres_dsn, ddl, GOOD)

    it.job.epoch()

    assert it.rows(columns="k, id") == [("a", 1), ("b", 2)]


def test_a_key_of_another_collation_is_compared_as_the_target_compares_it(postgres_dsn: str) -> None:
    """Staging and deleted keys have the target's collation, without which PostgreSQL compares nothing."""
    ddl = f'CREATE TABLE t (k text COLLATE "C" PRIMARY KEY, v int, {LINEAGE})'
    sink = PostgresTable(table="t", mode="upsert", key="k", before_images=2)
    it = Target(postgres_dsn, ddl, [kv("a", 1), kv("a", 2), kv("b", 3)], [sink])

    it.job.epoch()
    it.add(kv("b", 4))
    it.job.epoch()

    assert it.rows() == [("a", 2), ("b", 4)]
    assert it.job.sql(
        "SELECT count(*) FROM information_schema.columns WHERE column_name = 'k' AND collation_name = 'C'"
        " AND table_schema LIKE 'epochline%' AND table_name LIKE 'deleted%'"
    ) == [(1,)]


def test_a_row_of_a_sum_fails_the_epoch_and_the_quarantine_shows_it(postgres_dsn: str, on_ledger: Call) -> None:
    """No record can be set aside for it; logs name the rule alone, and a reader sees neither the row nor its reason."""
    values = [kv("ok", 1), kv("seldom", 1), kv("seldom", 2)]
    it = Target(postgres_dsn, "CREATE TABLE t (k text PRIMARY KEY, v int CHECK (v < 3))", values, [SUMS])

    refusal = it.refused()

    assert "a row for t: " in refusal
    assert "seldom" not in refusal
    [(row, reason)] = it.job.sql('SELECT "row", reason FROM epochline.refused_row')
    assert (row, "t_v_check" in reason) == (kv("seldom", 3), True)
    assert "`epochline quarantine orders` shows the row" in refusal
    shown = on_ledger(*QUARANTINE)[1]
    assert '{"k": "seldom", "v": 3}' in shown
    assert "t_v_check" in shown
    may_see = "SELECT has_column_privilege('epochline_reader', 'epochline.refused_rows', %s, 'SELECT')"
    assert [it.job.sql(may_see, name) for name in ("sink", "row", "reason")] == [[(True,)], [(False,)], [(False,)]]

    it.job.sql("ALTER TABLE t DROP CONSTRAINT t_v_check")
    it.job.epoch()
    assert on_ledger(*QUARANTINE) == (0, "no record in the quarantine of orders\n", "")


def test_a_sum_beyond_its_type_is_shown_as_well(postgres_dsn: str, on_ledger: Call) -> None:
    """The seal adds the sums to the table's row before the commit would fail."""
    ddl = f"CREATE TABLE t (k text PRIMARY KEY, v bigint); INSERT INTO t VALUES ('full', {2**63 - 1})"
    it = Target(postgres_dsn, ddl, [kv("ok", 1), kv("full", 1)], [SUMS])

    assert "a row for t: " in it.refused()

    shown = on_ledger(*QUARANTINE)[1]
    assert '{"k": "full", "_total": 1}' in shown
    assert "a sum of v would not fit bigint" in shown


def staging_only(it: Target, condition: str, *planned: Any) -> tuple[Plan, Run, StagingTicket]:
    """A plan, its run and a begun attempt whose staging takes only rows that fulfil a condition."""
    plan, run = planned or it.job.planned()
    ticket = it.job.attempt(plan, run)
    it.job.sql(f"ALTER TABLE epochline_staging.{ticket.table('t').table} ADD CHECK ({condition})")
    return plan, run, ticket


@pytest.mark.parametrize(
    ("number", "every", "block"),
    [(6_000, 20, range(40, 60)), pytest.param(200_000, 40, range(0), marks=pytest.mark.slow)],
)
def test_thousands_of_records_that_copy_refuses_cost_one_further_attempt(
    postgres_dsn: str, number: int, every: int, block: range
) -> None:
    """INV-9: exactly these are in the quarantine, and all others in the table."""
    values, bad = with_many(number, every, block)
    it = Target(postgres_dsn, f"CREATE TABLE t (k text, v int, {LINEAGE})", values)
    planned, run, ticket = staging_only(it, "v > 0")

    rule = r"CheckViolation \(SQLSTATE 23514\)"
    said = rf"staging: orders-0 offset .*{rule}.*and {len(bad) - 5} more. The next attempt sets"
    with pytest.raises(RecordsRefusedError, match=said):
        it.job.stage(planned, ticket)
    assert it.job.sql(f"SELECT * FROM epochline_staging.{ticket.table('t').table}") == []
    assert it.job.attempts(planned, run) == []

    assert {offset for offset, _ in it.quarantined()} == bad
    assert it.rows(columns="_offset") == [(at,) for at in range(number) if at not in bad]
    assert broken(it.job.sql, "orders", "t") == {}


@pytest.mark.usefixtures("hurried")
def test_a_copy_that_searches_too_long_reports_and_keeps_what_it_found(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-9: the next attempt sets it aside, whether or not the job came to its end."""
    values, bad = with_many(400, 10, range(0))
    it = Target(postgres_dsn, f"CREATE TABLE t (k text, v int, {LINEAGE})", values)
    planned, run = it.job.planned()
    found: list[int] = []
    while len(found) < len(bad):
        ticket = it.job.attempt(planned, run)
        it.job.sql(f"ALTER TABLE epochline_staging.{ticket.table('t').table} ADD CHECK (v > 0)")
        with pytest.raises(RecordsRefusedError, match="orders-0 offset"):
            it.job.stage(planned, ticket)
        before, found = found, [at for (at,) in it.job.sql('SELECT "offset" FROM epochline.refused_row ORDER BY 1')]
        assert found == sorted(bad)[: len(found)]
        assert len(found) > len(before)
    assert it.job.attempts(planned, run) == []

    assert {offset for offset, _ in it.quarantined()} == bad
    assert any("stage.searches attempt 1 of epoch 1 of orders partition=0 checked=" in one for one in caplog.messages)


def test_a_row_that_copy_refuses_only_once_fails_the_attempt(postgres_dsn: str) -> None:
    """INV-9: the rows before it were taken back, so the partition is not counted."""
    it = Target(postgres_dsn, f"CREATE TABLE t (k text, v int, {LINEAGE}); CREATE SEQUENCE calls", [*GOOD, kv("c", 3)])
    read = it.job.read
    it.job.read = lambda one: [batch.slice(at, 1) for batch in read(one) for at in range(batch.num_rows)]
    planned, run, ticket = staging_only(it, "nextval('public.calls'::regclass) <> 2")

    with pytest.raises(BadRecordError, match="CheckViolation"):
        it.job.stage(planned, ticket)
    assert it.job.attempts(planned, run) == []

    assert it.quarantined() == []
    assert it.rows() == [("a", 1), ("b", 2), ("c", 3)]


def test_records_that_copy_refuses_are_found_before_those_that_only_a_trial_shows(postgres_dsn: str) -> None:
    """What COPY refuses is not tried: both kinds in one epoch cost two further attempts."""
    it = Target(postgres_dsn, f"CREATE TABLE t (k text, v int UNIQUE, {LINEAGE})", [*GOOD, kv("c", 2), kv("d", 10)])
    planned, run, ticket = staging_only(it, "v < 10")

    with pytest.raises(RecordsRefusedError, match="staging: orders-0 offset 3"):
        it.job.stage(planned, ticket)
    [said] = it.job.attempts(planned, run)

    assert "target: orders-0 offset 2" in said
    assert [offset for offset, _ in it.quarantined()] == [2, 3]


def test_a_requeued_record_that_copy_refuses_is_set_aside_again(postgres_dsn: str) -> None:
    """Its epoch has no planned range that would tell the topic's id."""
    it = Target(postgres_dsn, f"CREATE TABLE t (k text, v int CHECK (v < 10), {LINEAGE})", [*GOOD, kv("c", 10)])
    it.sealed_after_attempts()
    it.job.sql("ALTER TABLE t DROP CONSTRAINT t_v_check")
    planned, run, ticket = staging_only(it, "v < 10", *requeue_planned(it))

    with pytest.raises(RecordsRefusedError, match="staging: orders-0 offset 2"):
        it.job.stage(planned, ticket)
    assert it.job.attempts(planned, run) == []

    [(offset, reason)] = it.quarantined()
    assert (offset, "violates check constraint" in reason) == (2, True)
    assert it.rows() == [("a", 1), ("b", 2)]


def test_a_login_without_the_rights_learns_which_before_anything_is_staged(
    postgres_dsn: str, login: Login, as_superuser: AsSuperuser
) -> None:
    """SEC-6: at the plan, and at the seal where a right was taken away meanwhile."""
    it = Target(postgres_dsn, f"CREATE TABLE t (k text PRIMARY KEY, v int, id serial, {LINEAGE})", GOOD, [UPSERT])
    it.job.log_in(login("epochline_owner"))
    who = user(it.job.dsn)

    missing = "GRANT SELECT ON t; GRANT INSERT ON t; GRANT UPDATE ON t; GRANT USAGE ON SEQ"
    with pytest.raises(TargetError, match=missing):
        it.job.planned()
    as_superuser(f"GRANT SELECT, INSERT, UPDATE ON t TO {who}", f"GRANT USAGE ON t_id_seq TO {who}")
    _, run, ticket = it.job.staged()
    as_superuser(f"REVOKE INSERT ON t FROM {who}")
    with pytest.raises(SealRefusedError, match="may not commit what is staged.*GRANT INSERT ON t"):
        it.job.seal(ticket, run)
    as_superuser(f"GRANT INSERT ON t TO {who}")
    it.job.seal(ticket, run)
    it.job.commit(1)

    assert as_superuser("SELECT k, v FROM t ORDER BY k") == [("a", 1), ("b", 2)]


def test_a_row_that_row_level_security_refuses_is_set_aside(
    postgres_dsn: str, login: Login, as_superuser: AsSuperuser
) -> None:
    """INV-9: the policy holds for the ledger's login, which owns no target."""
    ddl = (
        f"CREATE TABLE t (k text, v int, {LINEAGE}); ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
        " CREATE POLICY few ON t USING (true) WITH CHECK (v < 10)"
    )
    it = Target(postgres_dsn, ddl, [*GOOD, kv("c", 10)])
    it.job.log_in(login("epochline_owner"))
    as_superuser(f"GRANT SELECT, INSERT ON t TO {user(it.job.dsn)}")

    [said] = it.sealed_after_attempts()

    assert "orders-0 offset 2 for t: new row violates row-level security policy" in said
    assert it.rows() == [("a", 1), ("b", 2)]


def test_who_may_only_fill_a_table_fills_its_identity_column(
    postgres_dsn: str, login: Login, as_superuser: AsSuperuser
) -> None:
    """PostgreSQL asks for no right to an identity column's sequence, and so does the seal."""
    it = Target(postgres_dsn, f"CREATE TABLE t (k text, v int, id int GENERATED ALWAYS AS IDENTITY, {LINEAGE})", GOOD)
    it.job.log_in(login("epochline_owner"))
    as_superuser(f"GRANT INSERT ON t TO {user(it.job.dsn)}")
    with pytest.raises(TargetError, match="Missing: GRANT SELECT ON t"):
        it.job.planned()
    as_superuser(f"GRANT SELECT ON t TO {user(it.job.dsn)}")

    it.job.epoch()

    assert as_superuser("SELECT k, id FROM t ORDER BY id") == [("a", 1), ("b", 2)]
