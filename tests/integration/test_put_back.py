"""What a restore takes out and puts back, on real PostgreSQL: a row that remains is updated, never deleted.

So no foreign key of another table fires for it, and its identity stays. What must be deleted or inserted is exact, or it
is refused with the reason, and nothing is changed.
"""

from typing import Any

import pytest
from psycopg2 import sql

from epochline import PostgresTable
from epochline.errors import ActionRefusedError, SealRefusedError, TargetError
from epochline.operations.replay import plan_replay, promote
from tests.contract.worlds import run
from tests.crash.reliability import Recovery
from tests.integration import bench as benches
from tests.integration.bench import LINEAGE, Bench, NewBench, Row, kv
from tests.integration.operating import ORDER, act
from tests.integration.refusing import Target

UPSERT, ADD = ({**sink, "before_images": 9} for sink in (benches.UPSERT, benches.ADD))
WITH_ID = f"CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, k text PRIMARY KEY, v int{LINEAGE});"
CHILD = "CREATE TABLE child (k text REFERENCES t ON DELETE {0} ON UPDATE {0}, note text);"
ACTIONS_OF_KEYS = ("CASCADE", "SET NULL", "SET DEFAULT")


def restore(it: Bench) -> None:
    act(it, "restore", name="first")


def saved(it: Bench, *rows: Row) -> Bench:
    it.epoch(*rows)
    act(it, "savepoint", name="first")
    return it


def refuses(it: Bench, said: str, table: str = "t") -> None:
    def stands() -> list[Any]:
        asked = ((table, "k"), ("epochline.heads", "partition"))
        return [it.sql(f"SELECT * FROM {name} ORDER BY {key}") for name, key in asked]

    before = stands()
    with pytest.raises(TargetError, match=said):
        restore(it)
    assert stands() == before


@pytest.mark.fault("F42")
@pytest.mark.parametrize("action", ACTIONS_OF_KEYS)
@pytest.mark.parametrize("sink", [UPSERT, ADD], ids=["upsert", "add"])
def test_rows_that_refer_to_a_key_that_stays_are_not_touched(
    bench: NewBench, sink: dict[str, Any], action: str
) -> None:
    """C12, F42: the row goes back by UPDATE; its identity stays."""
    it = saved(bench(existing=WITH_ID + CHILD.format(action), **sink), kv("a", 1))
    it.sql("INSERT INTO child VALUES ('a', 'an order line of somebody else')")
    before = it.rows("id, k, v")
    it.epoch(kv("a", 2))
    it.epoch(kv("a", 3))

    restore(it)

    assert it.rows("id, k, v") == before
    assert it.sql("SELECT * FROM child") == [("a", "an order line of somebody else")]


@pytest.mark.fault("F42")
def test_rows_of_append_targets_take_no_rows_of_another_table_with_them(bench: NewBench) -> None:
    """C12, F42: a restore and a promoted replay delete rows."""
    table = f"CREATE TABLE t (k text PRIMARY KEY, v int{LINEAGE});" + CHILD.format("CASCADE")
    it = saved(bench(existing=table), kv("a", 1))
    it.epoch(kv("b", 2))
    it.sql("INSERT INTO child VALUES ('b', 'somebody''s')")

    refuses(it, "public.child has rows that refer to them")
    replay = plan_replay(it.subject, 2, run("replay"))
    assert replay.epoch is not None
    it.seal_staged(replay, kv("c", 2))
    with pytest.raises(TargetError, match=r"public\.child has rows that refer to them"):
        promote(it.subject, replay.epoch, ORDER)

    assert it.sql("SELECT * FROM child") == [("b", "somebody's")]
    assert it.rows() == [("a", 1), ("b", 2)]


TREE = "CREATE TABLE t (k text PRIMARY KEY, v int, up text DEFAULT 'z' REFERENCES t ON DELETE {0}" + LINEAGE + ");"


@pytest.mark.fault("F42")
@pytest.mark.parametrize("action", ACTIONS_OF_KEYS)
def test_rows_that_a_tombstone_takes_along_come_back(bench: NewBench, action: str) -> None:
    """C12, F42: a foreign key of the target to itself, over several levels and in a circle."""
    it = saved(
        bench({"k": "text", "v": "integer", "up": "text"}, existing=TREE.format(action), **UPSERT),
        *(kv(k, 1, up=up) for k, up in [("z", "z"), ("a", "a"), ("b", "a"), ("c", "b"), ("d", "c"), ("e", "e")]),
    )  # fmt: skip
    before = it.rows("*")
    it.epoch(kv("a", None, _deleted=True))
    assert it.rows("*") != before
    it.epoch(kv("e", 2, up="e"))

    restore(it)

    assert it.rows("*") == before


@pytest.mark.fault("F42")
@pytest.mark.parametrize("action", ACTIONS_OF_KEYS)
def test_an_epoch_that_took_rows_of_another_table_along_is_not_undone(bench: NewBench, action: str) -> None:
    """C12, F42: nothing keeps those rows, so the restore is refused; an epoch without such rows is undone."""
    it = saved(bench(existing=WITH_ID + CHILD.format(action), **UPSERT), kv("a", 1), kv("b", 1))
    it.epoch(kv("b", None, _deleted=True))
    restore(it)
    assert it.rows() == [("a", 1), ("b", 1)]
    it.commit_staged(it.plan(), kv("b", None, _deleted=True))
    it.sql("INSERT INTO child VALUES ('a', 'somebody''s')")
    it.epoch(kv("a", None, _deleted=True))

    with pytest.raises(ActionRefusedError, match=r"no before-images were kept of epoch 5.*names the key"):
        restore(it)


PARTS = {
    "the table": "CREATE TABLE part (k text PRIMARY KEY, v int{0});",
    "a partition": "CREATE TABLE t (k text PRIMARY KEY, v int{0}) PARTITION BY LIST (k); CREATE TABLE part PARTITION OF t DEFAULT;",
    "a partition of a partition": (
        "CREATE TABLE t (k text PRIMARY KEY, v int{0}) PARTITION BY LIST (k);"
        "CREATE TABLE middle PARTITION OF t DEFAULT PARTITION BY LIST (k); CREATE TABLE part PARTITION OF middle DEFAULT;"
    ),
}  # fmt: skip


@pytest.mark.fault("F42")
@pytest.mark.parametrize("action", ACTIONS_OF_KEYS)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", ["append", "upsert", "add", "replace"])
def test_rows_that_must_go_take_no_rows_of_another_table_with_them(
    bench: NewBench, mode: str, part: str, action: str, recovery: Recovery
) -> None:
    """C12, INV-9, F42: refused with the reason until nothing refers to them; a key may refer to a part of the target."""
    sink = {"append": {}, "upsert": UPSERT, "add": ADD, "replace": {"mode": "replace"}}[mode]
    table = "part" if part == "the table" else "t"
    it = saved(bench(existing=PARTS[part].format(LINEAGE), table=table, **sink), kv("a", 1))
    it.sql(f"CREATE TABLE child (k text DEFAULT 'a' REFERENCES part ON DELETE {action}, note text)")
    if mode != "replace":
        it.epoch(kv("a", 2), kv("new", 1)) if mode != "append" else it.epoch(kv("new", 1))
    it.sql(f"INSERT INTO child VALUES ('{'a' if mode == 'replace' else 'new'}', 'somebody''s')")

    said = r"public\.child has rows that refer to them, and its foreign key child_k_fkey (deletes|sets) those"
    if mode == "replace":
        with pytest.raises(SealRefusedError, match=f"mode replace deletes all rows of {table}: {said}"):
            it.sealed(kv("b", 1))
    else:
        refuses(it, said, table)

    assert len(it.sql("SELECT * FROM child WHERE k IS NOT NULL")) == 1
    it.sql("DROP TABLE child")
    if mode != "replace":
        recovery.last_fault()
        restore(it)
        recovery.took()
        assert it.sql(f"SELECT k, v FROM {table}") == [("a", 1)]


AB = [kv("a", 1), kv("b", 2)]
HISTORIES: dict[str, tuple[str, list[list[Row]]]] = {
    "a deleted row comes back with its identity": ("v int", [AB, [kv("a", None, _deleted=True)]]),
    "a row that was deleted and inserted gets its identity back": (
        "v int", [AB, [kv("a", None, _deleted=True)], [kv("a", 1)]],
    ),
    "unique values that changed places": ("v int UNIQUE", [AB, [kv("a", None), kv("b", 1)], [kv("a", 2)]]),
    "a unique value that was handed on": (
        "v int NOT NULL UNIQUE", [[kv("a", 1)], [kv("a", 1, _deleted=True)], [kv("z", 1)]],
    ),
    "unique values that are never NULL and changed places": ("v int NOT NULL UNIQUE", [AB, [kv("a", 2), kv("b", 1)]]),
    "a unique value of a row that goes": ("v int UNIQUE", [[kv("a", 1)], [kv("a", 5)], [kv("z", 1)]]),
    "unique values of an expression that changed places": (
        "v int, EXCLUDE USING btree ((v * 2) WITH =)", [AB, [kv("a", None), kv("b", 1)], [kv("a", 2)]],
    ),
    "a column that PostgreSQL computes": (
        "v int, twice int GENERATED ALWAYS AS (v * 2) STORED", [[kv("a", 1)], [kv("a", 2), kv("c", 3)]],
    ),
    "a column of the user's own": ("v int, seen int DEFAULT 7", [[kv("a", 1)], [kv("a", 2), kv("c", 3)]]),
    "a key that comes and goes": (
        "v int", [[kv("a", 1)], [kv("c", 1)], [kv("c", None, _deleted=True)], [kv("c", 2)]],
    ),
}  # fmt: skip


@pytest.mark.fault("F42")
@pytest.mark.parametrize("history", HISTORIES)
def test_every_column_of_every_row_is_as_it_was_before_the_undone_epochs(bench: NewBench, history: str) -> None:
    """C12, INV-9: identities, generated columns and values that are unique; going on gives the whole again."""
    columns, (first, *later) = HISTORIES[history]
    table = f"CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, k text PRIMARY KEY, {columns}{LINEAGE})"
    it = saved(bench(existing=table, **UPSERT), *first)
    before = it.sql("SELECT * FROM t ORDER BY k")
    for rows in later:
        it.epoch(*rows)
    whole = it.rows()

    restore(it)

    assert it.sql("SELECT * FROM t ORDER BY k") == before
    # As one epoch, in the order of the offsets: the newest record of each key wins.
    it.commit_staged(it.plan(), *(row for rows in later for row in rows))
    assert it.rows() == whole


@pytest.mark.fault("F42")
def test_unique_values_that_no_update_can_exchange_are_refused_with_the_reason(bench: NewBench) -> None:
    """C12: a column that is NOT NULL takes no NULL in between, and a row that is referred to is not deleted."""
    table = f"CREATE TABLE t (k text PRIMARY KEY, v int NOT NULL UNIQUE{LINEAGE});" + CHILD.format("CASCADE")
    it = saved(bench(existing=table, **UPSERT), kv("a", 1), kv("b", 2))
    it.sql("INSERT INTO child VALUES ('b', 'somebody''s')")
    for row in (kv("a", 3), kv("b", 1), kv("a", 2)):
        it.epoch(row)

    refuses(it, "values that t_v_key keeps unique change places between rows")

    it.sql("ALTER TABLE t ALTER v DROP NOT NULL")
    restore(it)
    assert it.rows() == [("a", 1), ("b", 2)]
    assert it.sql("SELECT * FROM child") == [("b", "somebody's")]


@pytest.mark.fault("F42")
def test_a_row_whose_identity_was_not_kept_is_not_given_another(bench: NewBench) -> None:
    """C12: before-images of an earlier release lack columns GENERATED ALWAYS."""
    it = saved(bench(existing=WITH_ID, **UPSERT), kv("a", 1), kv("b", 2))
    it.epoch(kv("a", None, _deleted=True), kv("b", 3))
    ((image,),) = it.sql("SELECT table_name FROM epochline.before_image WHERE epoch_id = 2")
    it.sql(sql.SQL("ALTER TABLE epochline.{} DROP COLUMN id").format(sql.Identifier(image)))

    refuses(it, "before-images of an earlier release lack id")


@pytest.mark.fault("F42")
def test_a_trigger_that_notes_the_time_of_a_change_stops_no_restore(bench: NewBench) -> None:
    """C12: what the pipeline does not write may be as the user's trigger wants it."""
    it = bench(existing=f"CREATE TABLE t (k text PRIMARY KEY, v int, changed timestamptz{LINEAGE})", **UPSERT)
    it.sql(
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.changed = clock_timestamp(); RETURN NEW;"
        " END$$; CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION touch()"
    )
    saved(it, kv("a", 1))
    it.epoch(kv("a", 2), kv("b", 2))

    restore(it)

    assert it.rows() == [("a", 1)]


@pytest.mark.fault("F42")
@pytest.mark.parametrize("action", ["CASCADE", "NO ACTION"])
@pytest.mark.parametrize("child", [UPSERT, {}], ids=["upsert", "append"])
def test_targets_that_refer_to_each_other_go_back_together(
    postgres_dsn: str, action: str, child: dict[str, Any]
) -> None:
    """C12, F42: what refers to a row goes before it."""
    ddl = (
        f"CREATE TABLE parent (k text PRIMARY KEY, v int{LINEAGE});"
        f"CREATE TABLE t (k text PRIMARY KEY REFERENCES parent ON DELETE {action}, v int{LINEAGE})"
    )
    sinks = [PostgresTable(table="parent", **UPSERT), PostgresTable(table="t", **child)]
    it = Target(postgres_dsn, ddl, [kv("a", 1)], sinks)
    it.job.epoch()
    it.job.act("savepoint", ORDER, name="first")
    it.add(kv("b", 2))
    it.job.epoch()
    whole = it.rows("parent"), it.rows("t")

    it.job.act("restore", ORDER, name="first")

    assert (it.rows("parent"), it.rows("t")) == ([("a", 1)], [("a", 1)])
    it.job.epoch()
    assert (it.rows("parent"), it.rows("t")) == whole
