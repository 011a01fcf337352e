"""Targets of one pipeline that refer to each other: the order of statements follows foreign keys, not the declaration."""

import pytest

from epochline import PostgresTable
from epochline.errors import SealRefusedError, TargetError
from epochline.postgres.targets import together
from tests.databases import query
from tests.integration.bench import IN_PUBLIC, Row
from tests.integration.refusing import LINEAGE, ORDER, Target, gone, requeued

RECORD = {"id": "integer", "pid": "integer", "name": "text"}
PARENT = f"CREATE TABLE parent (pid int PRIMARY KEY, name text, {LINEAGE});"
CHILD = f"CREATE TABLE child (id int PRIMARY KEY, pid int REFERENCES parent $, name text, {LINEAGE});"
CHILD_FIRST = (
    PostgresTable(table="child", mode="upsert", key="id", before_images=3),
    PostgresTable(table="parent", mode="upsert", key="pid", before_images=3),
)
ACTIONS = ["", "ON DELETE CASCADE", "ON DELETE RESTRICT", "ON DELETE SET NULL", "DEFERRABLE"]


def row(key: int, pid: int, name: str = "x") -> Row:
    return {"id": key, "pid": pid, "name": name}


def target(dsn: str, *values: Row, action: str = "", sinks: tuple[PostgresTable, ...] = CHILD_FIRST) -> Target:
    return Target(dsn, PARENT + CHILD.replace("$", action), list(values), sinks, record=RECORD)


def shown(it: Target) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    return it.rows("parent", "pid, name"), it.rows("child", "id, pid")


@pytest.mark.fault("F45")
@pytest.mark.parametrize("action", ACTIONS)
def test_rows_of_two_targets_are_written_parents_first_and_deleted_children_first(
    postgres_dsn: str, action: str
) -> None:
    """INV-2: the child is declared first; rows come, move to another parent, and go with their parent in one epoch."""
    it = target(postgres_dsn, row(1, 10), row(2, 20), action=action)
    assert it.sealed_after_attempts() == []
    it.add(gone(id=1, pid=10), row(2, 30), gone(id=9, pid=20), row(3, 30))

    assert it.sealed_after_attempts() == []

    assert it.quarantined() == []
    assert shown(it) == ([(30, "x")], [(2, 30), (3, 30)])


@pytest.mark.fault("F45")
def test_of_two_targets_the_record_to_blame_is_found_and_comes_back_by_a_requeue(postgres_dsn: str) -> None:
    """INV-9: the rows of other records, and of other tables, are not blamed for it."""
    it = target(postgres_dsn, row(1, 10, "bad"), row(2, 20), row(3, 20))
    it.job.sql("CREATE UNIQUE INDEX one_name ON parent (pid, (1 / (CASE name WHEN 'bad' THEN 0 ELSE 1 END)))")

    [said] = it.sealed_after_attempts()

    assert "orders-0 offset 0 for parent: " in said
    assert said.count("offset") == 1
    assert [offset for offset, _ in it.quarantined()] == [0]
    assert shown(it) == ([(20, "x")], [(2, 20), (3, 20)])
    it.job.sql("DROP INDEX one_name")
    assert requeued(it) == []
    assert shown(it) == ([(10, "bad"), (20, "x")], [(1, 10), (2, 20), (3, 20)])


def test_a_parent_that_a_row_outside_of_the_epoch_needs_is_blamed_alone(postgres_dsn: str) -> None:
    """The deletion breaks the final state; the deletions of a parent with its child do not."""
    it = target(postgres_dsn, row(1, 10), row(2, 20), row(3, 30))
    it.sealed_after_attempts()
    it.add(gone(id=9, pid=10), gone(id=2, pid=20), row(4, 40))

    [said] = it.sealed_after_attempts()

    assert [offset for offset, _ in it.quarantined()] == [3]
    assert "offset 3 for parent: " in said
    assert shown(it) == ([(10, "x"), (30, "x"), (40, "x")], [(1, 10), (3, 30), (4, 40)])


def circle(deferrable: str) -> str:
    return (
        f"CREATE TABLE parent (pid int PRIMARY KEY, id int, name text CHECK (name <> 'bad'), {LINEAGE});"
        f"CREATE TABLE child (id int PRIMARY KEY, pid int REFERENCES parent {deferrable}, name text, {LINEAGE});"
        f"ALTER TABLE parent ADD CONSTRAINT newest FOREIGN KEY (id) REFERENCES child {deferrable};"
    )


@pytest.mark.fault("F45")
@pytest.mark.parametrize("deferrable", ["DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"])
def test_a_circle_of_deferrable_keys_commits(postgres_dsn: str, deferrable: str) -> None:
    """INV-2: both rows of each record are there in the end; of a record that breaks a key, none is."""
    it = Target(postgres_dsn, circle(deferrable), [row(1, 10), row(2, 20)], CHILD_FIRST, record=RECORD)
    assert it.sealed_after_attempts() == []
    it.add(row(3, 10), gone(id=2, pid=20))

    assert it.sealed_after_attempts() == []

    assert (it.rows("parent", "pid, id"), it.rows("child", "id, pid")) == ([(10, 3)], [(1, 10), (3, 10)])


@pytest.mark.fault("F45")
def test_another_circle_is_refused_at_the_plan_with_the_statements_that_mend_it(postgres_dsn: str) -> None:
    it = Target(postgres_dsn, circle(""), [row(1, 10)], CHILD_FIRST, record=RECORD)
    with pytest.raises(TargetError, match="refer to each other by foreign keys") as raised:
        it.job.planned()

    for statement in str(raised.value).partition("Run: ")[2].partition(" To go on")[0].split(";")[:-1]:
        it.job.sql(statement)
    it.sealed_after_attempts()

    assert it.rows("child", "id, pid") == [(1, 10)]


REPLACED = PostgresTable(table="parent", mode="replace", columns=None)


@pytest.mark.fault("F45")
@pytest.mark.parametrize("action", ["", "ON DELETE CASCADE"])
def test_a_replaced_parent_needs_a_key_that_waits(postgres_dsn: str, action: str) -> None:
    """Refused at the plan with the statement after which the rows of both are there."""
    sinks = (PostgresTable(table="child", mode="upsert", key="id"), REPLACED)
    it = target(postgres_dsn, row(1, 10), action=action, sinks=sinks)
    with pytest.raises(TargetError, match="has mode 'replace'") as raised:
        it.job.planned()
    it.job.sql(str(raised.value).partition("or run: ")[2].partition(";")[0])

    it.sealed_after_attempts()
    it.add(row(1, 20), row(2, 30))

    assert it.sealed_after_attempts() == []

    assert shown(it) == ([(20, "x"), (30, "x")], [(1, 20), (2, 30)])


def test_replaced_parents_and_children_are_taken_away_children_first(postgres_dsn: str) -> None:
    sinks = (PostgresTable(table="child", mode="replace"), REPLACED)
    it = target(postgres_dsn, row(1, 10), row(2, 20), action="ON DELETE CASCADE", sinks=sinks)
    it.sealed_after_attempts()
    it.add(row(3, 30))

    it.sealed_after_attempts()

    assert shown(it) == ([(30, "x")], [(3, 30)])


@pytest.mark.parametrize("action", ["", "ON DELETE CASCADE", "ON DELETE SET NULL"])
@pytest.mark.parametrize("deferrable", ["DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"])
def test_two_replaced_targets_in_a_circle_of_deferrable_keys_commit(
    postgres_dsn: str, deferrable: str, action: str
) -> None:
    """INV-2: the rows of both are replaced together, whatever a key does with rows that refer to those that go."""
    sinks = (PostgresTable(table="child", mode="replace"), REPLACED)
    it = Target(postgres_dsn, circle(f"{action} {deferrable}"), [row(1, 10), row(2, 20)], sinks, record=RECORD)
    it.sealed_after_attempts()
    it.add(row(3, 30), row(5, 50, "bad"), row(4, 40))

    [said] = it.sealed_after_attempts()

    assert said.count("offset 3 for parent") == 1
    assert it.rows("parent", "pid, id") == [(30, 3), (40, 4)]
    assert it.rows("child", "id, pid") == [(3, 30), (4, 40)]


@pytest.mark.parametrize(
    ("action", "rows"),
    [
        pytest.param("", [row(3, 30), row(4, 40)], id="what was inserted goes children first"),
        pytest.param("", [gone(id=1, pid=10), gone(id=2, pid=20)], id="what was deleted comes back parents first"),
        *(
            pytest.param(f"ON DELETE {one}", [gone(id=9, pid=10)], id=f"what went with its parent comes back: {one}")
            for one in ("CASCADE", "SET NULL", "SET DEFAULT")
        ),
    ],
)
def test_a_restore_undoes_parents_and_children(postgres_dsn: str, action: str, rows: list[Row]) -> None:
    """C12: the child's before-image has the row that only the parent's tombstone took along."""
    it = target(postgres_dsn, row(1, 10), row(2, 20), action=action)
    it.sealed_after_attempts()
    before = shown(it)
    it.job.act("savepoint", ORDER, name="before")
    it.add(*rows)
    it.sealed_after_attempts()
    assert shown(it)[1] != before[1]

    it.job.act("restore", ORDER, name="before")

    assert shown(it) == before


def test_code_of_one_target_sees_the_rows_of_another_in_the_trial(postgres_dsn: str) -> None:
    """The trigger's table is tried with all others, as the commit writes them."""
    it = Target(
        postgres_dsn,
        f"CREATE TABLE parent (pid int PRIMARY KEY, name text, {LINEAGE});"
        f"CREATE TABLE child (id int PRIMARY KEY, pid int, name text, {LINEAGE});"
        "CREATE FUNCTION known() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NOT EXISTS (SELECT FROM parent WHERE pid = NEW.pid) THEN RAISE 'no parent'; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER known BEFORE INSERT ON child FOR EACH ROW EXECUTE FUNCTION known()",
        [row(1, 10)], CHILD_FIRST[::-1], record=RECORD,
    )  # fmt: skip

    assert it.sealed_after_attempts() == []

    assert it.rows("child", "id, pid") == [(1, 10)]


MEDDLE = "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM plain; RETURN NULL; END $$;"
SENDER = f"CREATE TABLE sender (id int PRIMARY KEY, pid int, name text, {LINEAGE})"
FIRES = "EXECUTE FUNCTION meddle();"
CODE = {
    "a trigger": f"{SENDER}; CREATE TRIGGER m AFTER INSERT OR UPDATE OR DELETE ON sender {FIRES}",
    "a trigger of a partition": (
        f"{SENDER} PARTITION BY LIST (id); CREATE TABLE part PARTITION OF sender DEFAULT;"
        f"CREATE TRIGGER m AFTER INSERT OR UPDATE OR DELETE ON part FOR EACH ROW {FIRES}"
    ),
    "a trigger of a table that a key changes": (
        f"{SENDER}; CREATE UNIQUE INDEX ON sender (pid); CREATE TABLE other (pid int REFERENCES sender (pid) ON UPDATE CASCADE); INSERT INTO"
        f" sender VALUES (1, 7); INSERT INTO other VALUES (7); CREATE TRIGGER m AFTER UPDATE ON other {FIRES}"
    ),
    "a rule": f"{SENDER}; CREATE RULE m AS ON INSERT TO sender DO ALSO DELETE FROM plain;",
    "a default": (
        f"{SENDER}; CREATE FUNCTION seven() RETURNS int LANGUAGE sql AS 'DELETE FROM plain; SELECT 7';"
        "ALTER TABLE sender ADD seven int DEFAULT seven()"
    ),
    "a check": (
        f"{SENDER}; CREATE FUNCTION yes(int) RETURNS bool LANGUAGE sql AS 'DELETE FROM plain; SELECT true';"
        "ALTER TABLE sender ADD CHECK (yes(id))"
    ),
}


@pytest.mark.parametrize("first", ["sender", "plain"])
@pytest.mark.parametrize("code", CODE)
def test_what_code_of_one_target_does_to_another_is_found_at_the_seal(postgres_dsn: str, code: str, first: str) -> None:
    """INV-9: rows of a plain target are all there after the commit, or the seal refuses the epoch and it goes on later."""
    plain = f"CREATE TABLE plain (id int, pid int, name text, {LINEAGE}); {MEDDLE}"
    sinks = PostgresTable(table="sender", mode="upsert", key="id"), PostgresTable(table="plain")
    sinks = sinks if first == "sender" else sinks[::-1]
    it = Target(postgres_dsn, f"{plain} {CODE[code]}", [row(1, 10), row(2, 20)], sinks, record=RECORD)
    planned, run = it.job.planned()
    try:
        it.job.staged_and_sealed(planned, run)
    except SealRefusedError:
        drop = "DROP RULE IF EXISTS m ON sender; DROP FUNCTION IF EXISTS meddle, seven, yes CASCADE"
        query(postgres_dsn, drop, options=IN_PUBLIC)
        it.job.staged_and_sealed(planned, run)

    it.job.commit(planned)

    assert it.rows("plain", "id, pid") == [(1, 10), (2, 20)]


def test_without_the_order_of_keys_both_tables_are_refused(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken away: the declaration's order, in which the child comes first."""
    monkeypatch.setattr(together, "parents_first", lambda targets: ([one.place for one in targets], []))
    it = target(postgres_dsn, row(1, 10), row(2, 20))

    assert it.sealed_after_attempts() != []

    assert shown(it) == ([], [])
