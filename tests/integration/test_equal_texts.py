"""Texts that differ and are equal for PostgreSQL, by a non-deterministic collation or as citext; and equal numbers.

For Kafka and Spark `a` and `A` are two keys. No row takes the place of another one's in silence, and no comparison of
what was read with what is stored takes one spelling for the other.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochline import PostgresTable
from epochline.errors import RowsRefusedError, TargetError
from epochline.operations import Request
from epochline.operations.replay import differences, plan_replay
from epochline.postgres.ledger.migrate import upgrade
from tests.databases import as_admin
from tests.driver import epoch_of
from tests.integration.bench import ADD, LINEAGE, UPSERT, NewBench, kv
from tests.integration.counting import Counting
from tests.integration.operating import exported, imported
from tests.matrix.servers import postgres

CI = "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
HOSTILE = ' "c%i""s" '
KEYS = {
    "a column": f"{CI}; CREATE TABLE t (k text COLLATE ci PRIMARY KEY, v int {LINEAGE})",
    "citext": f"CREATE EXTENSION citext; CREATE TABLE t (k citext PRIMARY KEY, v int {LINEAGE})",
    "a domain": f"{CI}; CREATE DOMAIN d AS text COLLATE ci; CREATE TABLE t (k d PRIMARY KEY, v int {LINEAGE})",
    "a domain of citext": (
        f"CREATE EXTENSION citext; CREATE DOMAIN d AS citext; CREATE TABLE t (k d PRIMARY KEY, v int {LINEAGE})"
    ),
    "its index": f"{CI}; CREATE TABLE t (k text NOT NULL, v int {LINEAGE}); CREATE UNIQUE INDEX ON t (k COLLATE ci)",
    "a second index": f"{CI}; CREATE TABLE t (k text PRIMARY KEY, v int {LINEAGE}); CREATE UNIQUE INDEX ON t (k COLLATE ci)",
    "a column with another index": (
        f'{CI}; CREATE TABLE t (k text COLLATE ci NOT NULL, v int {LINEAGE}); CREATE UNIQUE INDEX ON t (k COLLATE "C")'
    ),
    "partitions": (
        f"{CI}; CREATE TABLE t (k text COLLATE ci PRIMARY KEY, v int {LINEAGE}) PARTITION BY HASH (k);"
        " CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    ),
    "hostile names": CI.replace(" ci ", HOSTILE)
    + f"; CREATE TABLE t (k text COLLATE {HOSTILE} PRIMARY KEY, v int {LINEAGE})",
}
MODES: dict[str, dict[str, Any]] = {
    "upsert": UPSERT, "add": ADD, "skip": {"key": "k", "repeats": "skip"}, "refuse": {"key": "k", "repeats": "refuse"},
}  # fmt: skip
ORDER = Request(actor="ada", reason="two spellings")
SAID = "key column k takes texts that differ for equal, by a non-deterministic collation or as citext"


@pytest.fixture(scope="module")
def new_database() -> Iterator[Callable[[], str]]:
    """Makes databases with a ledger on a server with ICU and citext."""
    numbers = itertools.count(1)
    with postgres("17") as url:
        as_admin(f"{url}postgres", "CREATE DATABASE migrated")
        upgrade(f"{url}migrated")

        def new() -> str:
            name = f"equal_{next(numbers)}"
            as_admin(f"{url}postgres", f"CREATE DATABASE {name} TEMPLATE migrated")
            return f"{url}{name}"

        yield new


@pytest.fixture
def postgres_dsn(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.mark.parametrize(
    "kind", [kind if kind == "a column" else pytest.param(kind, marks=pytest.mark.slow) for kind in KEYS]
)
def test_a_key_that_is_equal_in_two_spellings_is_refused_by_the_plan(bench: NewBench, kind: str) -> None:
    """INV-9: the second key's record would change the first one's row, and a restore bring back another spelling."""
    it = bench(existing=KEYS[kind], **UPSERT)

    with pytest.raises(TargetError, match=SAID):
        it.plan(kv("a", 1), kv("A", 2))

    assert it.sql("SELECT count(*) FROM epochline.epochs") == [(0,)]
    with it.ledger.transaction() as tx:
        [problem] = tx.targets.compare(it.pipeline).problems
    assert SAID in problem  # `epochline validate` says it, too


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_with_a_key_refuses_it(bench: NewBench, mode: str) -> None:
    it = bench(existing=KEYS["a column"], **MODES[mode])

    with pytest.raises(TargetError, match=SAID):
        it.plan(kv("a", 1))


@pytest.mark.slow
def test_a_column_that_is_changed_so_under_a_pipeline_stops_its_sealed_epoch(bench: NewBench) -> None:
    """INV-9: the commit looks at the table again; with the collation back, it goes on."""
    it = bench(**UPSERT).after([kv("a", 1)])
    planned = it.sealed(kv("A", 2))
    it.sql(CI)
    it.sql("ALTER TABLE t ALTER COLUMN k TYPE text COLLATE ci")

    with pytest.raises(TargetError):
        it.commit(planned)

    assert it.rows() == [("a", 1)]
    it.sql('ALTER TABLE t ALTER COLUMN k TYPE text COLLATE "default"')
    it.commit(planned)
    assert sorted(it.rows()) == [("A", 2), ("a", 1)]


@pytest.mark.slow
def test_a_state_table_that_is_changed_so_is_refused(postgres_dsn: str) -> None:
    """INV-2: Spark would find one row for two keys, and each would overwrite the other's."""
    it = Counting(postgres_dsn, postgres_dsn)
    it.epoch({"word": "a", "count": 1})
    it.sql(CI)
    it.sql("ALTER TABLE words ALTER COLUMN word TYPE text COLLATE ci")

    with pytest.raises(TargetError, match="words: key column word takes texts that differ for equal"):
        it.plan({"word": "A", "count": 1})


@pytest.mark.slow
def test_another_unique_key_of_the_table_refuses_the_second_spelling_and_loses_nothing(bench: NewBench) -> None:
    """INV-9: not declared, it is a rule of the table: the record is a bad one, and counted."""
    it = bench(existing=KEYS["a column"], mode="append")
    it.pipeline = it.pipeline.model_copy(update={"bad_records": "quarantine"})

    with pytest.raises(Exception, match="refused by a target"):
        it.sealed(kv("a", 1), kv("A", 2))

    assert it.sql('SELECT _offset_ FROM (SELECT "offset" AS _offset_ FROM epochline.refused_row) r') == [(1,)]


VALUES = f"{CI}; CREATE TABLE t (k text PRIMARY KEY, v text COLLATE ci {LINEAGE})"
TEXTS = {"k": "text", "v": "text"}


@pytest.mark.slow
def test_a_value_of_which_the_spelling_changed_is_written_and_restored(bench: NewBench) -> None:
    """INV-9, C12: equal for the column, it is another value."""
    it = bench(TEXTS, existing=VALUES, before_images=3, **UPSERT).after([kv("a", "x")])
    it.act("savepoint", ORDER, name="x")

    it.epoch(kv("a", "X"))

    assert it.rows() == [("a", "X")]
    it.act("restore", ORDER, name="x")
    assert it.rows() == [("a", "x")]


@pytest.mark.slow
def test_without_lineage_and_past_a_trigger_another_spelling_is_no_written_row(bench: NewBench) -> None:
    """INV-9: only values tell whether the row was written."""
    made = f"{CI}; CREATE TABLE t (k text PRIMARY KEY, v text COLLATE ci)"
    it = bench(TEXTS, existing=made, lineage=False, mode="upsert", key="k").after([kv("a", "x")])
    it.sql(
        "CREATE FUNCTION lower_v() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := lower(NEW.v); RETURN NEW; END'"
    )
    it.sql("CREATE TRIGGER lowers BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION lower_v()")

    with pytest.raises(RowsRefusedError, match="1 keys are not as their newest record says"):
        it.sealed(kv("a", "X"))


@pytest.mark.slow
def test_a_replay_shows_a_spelling_that_differs(bench: NewBench) -> None:
    """C13: compared as texts are written, not as the column compares them."""
    made = f"{CI}; CREATE TABLE t (k text, v text COLLATE ci {LINEAGE})"
    it = bench(TEXTS, existing=made).after([kv("a", "x")])
    planned = plan_replay(it.subject, 1, it.run_of("again"))
    it.seal_staged(planned, kv("a", "X"))

    [table] = differences(it.subject, epoch_of(planned))

    assert (table.same, table.changed) == (0, 1)


@pytest.mark.slow
def test_only_the_spelling_that_is_to_be_forgotten_is_erased(bench: NewBench) -> None:
    """INV-9: the other one may be somebody else's."""
    made = f"{CI}; CREATE TABLE t (k text COLLATE ci, v int {LINEAGE})"
    it = bench(existing=made).after([kv("a", 1), kv("A", 2)])

    it.act("forget", ORDER, key=["k=A"], target=True)

    assert it.rows() == [("a", 1)]


@pytest.mark.slow
def test_state_that_is_an_equal_number_of_other_digits_is_written_as_it_was_given(postgres_dsn: str) -> None:
    """INV-9: a value is what was written."""
    it = Counting(postgres_dsn, postgres_dsn, create=False)
    columns = {"word": "text", "count": "numeric"}
    changed = {
        "state": tuple(one.model_copy(update={"columns": columns}) for one in it.pipeline.state),
        "sinks": (PostgresTable(table="t", mode="upsert", key="word", columns=columns, aggregated=True),),
    }
    it.pipeline = it.pipeline.model_copy(update=changed)
    it.create()
    it.epoch({"word": "a", "count": "1.0"})

    it.epoch({"word": "a", "count": "1.00"})

    assert [str(count) for _, count in it.counts()] == ["1.00"]


def counted(dsn: str, name: str = "orders", **counts: int) -> Counting:
    it = Counting(dsn, dsn, create=False)
    it.pipeline = it.pipeline.model_copy(update={"name": name})
    it.create()
    if counts:
        it.epoch(*({"word": word, "count": count} for word, count in counts.items()))
        it.act("savepoint", ORDER, name="before")
    return it


@pytest.mark.slow
def test_state_from_another_database_is_refused_where_a_table_takes_two_of_its_keys_for_one(
    postgres_dsn: str, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """C11, INV-2: nothing of the state is there afterwards."""
    it, there = counted(postgres_dsn, a=1, A=2), counted(new_database(), "second")
    there.sql(CI)
    there.sql("ALTER TABLE words ALTER COLUMN word TYPE text COLLATE ci")
    imported(there, exported(it, tmp_path / "file"))
    there.kafka.produce("orders", 0, 2)

    with pytest.raises(TargetError, match="words: key column word takes texts that differ for equal"):
        there.act("restore", ORDER, name="before", of="orders")

    assert there.counts() == []
