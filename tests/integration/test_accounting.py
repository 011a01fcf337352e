"""Every statement that changes a target accounts for every row that it had to change, for every mode and operation.

A trigger, a rule or row-level security of the target keeps, moves, changes or adds rows. Whatever an operation does then
is exact, or it is refused and changes nothing; once the obstacle is gone, a repeat is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from epochline.coordinator import Plan
from epochline.errors import EpochlineError, SealRefusedError
from epochline.operations import Request
from epochline.operations.replay import plan_replay, promote
from tests.contract.worlds import run
from tests.crash.reliability import Recovery
from tests.integration import bench as benches
from tests.integration.bench import LINEAGE, Bench, NewBench, Row, kv
from tests.integration.logins import AsSuperuser

ORDER = Request(actor="ada", reason="a test says so")
GONE: Row = {"k": "gone", "_deleted": True}
FIRST = [kv("a", 1), kv("frozen", 10), kv("gone", 3)]
EXCHANGED = [kv("a", 10), kv("frozen", 1), kv("new", 3), GONE]
"""Two rows swap their values, and a deleted row hands its value on."""
SECOND = [kv("a", 2), kv("frozen", 100), kv("new", 7)]


@dataclass(frozen=True)
class Mode:
    sink: dict[str, Any]
    ddl: str
    second: list[Row]
    rows: list[tuple[str, int]]
    """What the table holds after both epochs."""
    restored: bool = True


PLAIN = f"CREATE TABLE t (k text, v int{LINEAGE})"
KEYED = f"CREATE TABLE t (k text PRIMARY KEY, v int{LINEAGE})"
BARE, BARE_KEYED = "CREATE TABLE t (k text, v int)", "CREATE TABLE t (k text PRIMARY KEY, v int)"
BOTH, NEW = (sorted((row["k"], row["v"]) for row in rows) for rows in ([*FIRST, *SECOND], SECOND))
UPSERT, ADD = ({**sink, "before_images": 9} for sink in (benches.UPSERT, benches.ADD))
MODES = {
    "append": Mode({}, PLAIN, SECOND, BOTH),
    "append without lineage": Mode({"lineage": False}, BARE, SECOND, BOTH, restored=False),
    "append with a key": Mode(
        {"key": ("k", "v"), "repeats": "refuse"}, PLAIN.replace(")", ", PRIMARY KEY (k, v))"), SECOND, BOTH,
    ),
    "append that skips": Mode(
        {"key": "k", "repeats": "skip"}, KEYED, SECOND, [("a", 1), ("frozen", 10), ("gone", 3), ("new", 7)],
    ),
    "upsert": Mode(UPSERT, KEYED, [*SECOND, GONE], NEW),
    "upsert without lineage": Mode({**UPSERT, "lineage": False}, BARE_KEYED, [*SECOND, GONE], NEW),
    **{
        f"upsert that exchanges {name}": Mode(
            UPSERT, KEYED.replace("v int", f"v int {kind} UNIQUE"), EXCHANGED, [("a", 10), ("frozen", 1), ("new", 3)],
        )
        for name, kind in {"unique values": "", "unique values that are never NULL": "NOT NULL"}.items()
    },
    "add": Mode(ADD, BARE_KEYED, SECOND, [("a", 3), ("frozen", 110), ("gone", 3), ("new", 7)]),
    "replace": Mode({"mode": "replace"}, PLAIN, SECOND, NEW, restored=False),
}  # fmt: skip


def trigger(what: str, body: str, *, timing: str = "BEFORE", each: str = "ROW", kind: str = "", when: str = "") -> str:
    return (
        f"CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body} END$$;"
        f" CREATE {kind} TRIGGER meddle {timing} {what} ON t {when} FOR EACH {each} EXECUTE FUNCTION meddle();"
    )


COMES_BACK = "INSERT INTO t SELECT OLD.*; RETURN NULL;"
DELETES = "DELETE FROM t WHERE k = 'frozen'; RETURN NULL;"
DEFERRED = {"timing": "AFTER", "kind": "CONSTRAINT", "when": "DEFERRABLE INITIALLY DEFERRED"}
NO_TRIGGER = "DROP FUNCTION IF EXISTS meddle() CASCADE;"
NO_RULE = "DROP RULE IF EXISTS meddle ON t;"
OPEN = "ALTER TABLE t DISABLE ROW LEVEL SECURITY; DROP POLICY IF EXISTS r ON t; DROP POLICY IF EXISTS i ON t;"
NOT_FROZEN = "IF NEW.k = 'frozen' THEN RETURN NULL; END IF; RETURN NEW;"
FORCED = "ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY;"
WAYS = {
    "trigger on insert": (trigger("INSERT", NOT_FROZEN), NO_TRIGGER),
    "trigger on update": (trigger("UPDATE", NOT_FROZEN), NO_TRIGGER),
    "trigger on delete": (trigger("DELETE", "RETURN NULL;"), NO_TRIGGER),
    "trigger that keeps the old row": (trigger("UPDATE", "RETURN OLD;"), NO_TRIGGER),
    "trigger that changes the epoch": (trigger("INSERT OR UPDATE", "NEW._epoch = 1; RETURN NEW;"), NO_TRIGGER),
    "trigger that changes the position": (trigger("INSERT OR UPDATE", "NEW._offset = 99; RETURN NEW;"), NO_TRIGGER),
    "trigger that deletes afterwards": (
        trigger("INSERT OR UPDATE", DELETES, timing="AFTER", each="STATEMENT"), NO_TRIGGER,
    ),
    "trigger that deletes at the end": (trigger("INSERT OR UPDATE OR DELETE", DELETES, **DEFERRED), NO_TRIGGER),
    "trigger that brings a deleted row back": (
        trigger("DELETE", COMES_BACK, timing="AFTER"), NO_TRIGGER,
    ),
    "trigger that marks in place of deleting": (
        trigger("DELETE", "UPDATE t SET v = -1 WHERE k = OLD.k AND v = OLD.v; RETURN NULL;"), NO_TRIGGER,
    ),
    "trigger that swallows one and adds another": (
        trigger(
            "INSERT",
            "IF NEW.k = 'frozen' THEN NEW.k = 'other'; INSERT INTO t SELECT NEW.*; RETURN NULL; END IF; RETURN NEW;",
        ),
        NO_TRIGGER,
    ),
    "rule on insert": ("CREATE RULE meddle AS ON INSERT TO t DO INSTEAD NOTHING", NO_RULE),
    "rule that writes elsewhere": (
        "CREATE TABLE IF NOT EXISTS u AS TABLE t WITH NO DATA;"
        "CREATE RULE meddle AS ON INSERT TO t DO INSTEAD INSERT INTO u SELECT NEW.*",
        NO_RULE,
    ),
    "rule on update": ("CREATE RULE meddle AS ON UPDATE TO t DO INSTEAD NOTHING", NO_RULE),
    "rule on delete": ("CREATE RULE meddle AS ON DELETE TO t DO INSTEAD NOTHING", NO_RULE),
    "rows that cannot be seen": (
        f"CREATE POLICY r ON t USING (k <> 'frozen'); CREATE POLICY i ON t FOR INSERT WITH CHECK (true); {FORCED}", OPEN,
    ),
    "rows that a crash empties": ("ALTER TABLE t SET UNLOGGED", "ALTER TABLE t SET LOGGED"),
    "rows that cannot be deleted": (
        "CREATE POLICY r ON t FOR SELECT USING (true); CREATE POLICY i ON t FOR INSERT WITH CHECK (true);" + FORCED, OPEN,
    ),
}  # fmt: skip


class MeddledTable:
    """A pipeline into a table of somebody else, who can meddle with it."""

    def __init__(self, it: Bench, admin: AsSuperuser, mode: Mode, way: tuple[str, str]) -> None:
        self.it, self.mode, self.way, self.admin = it, mode, way, admin

    def meddle(self) -> None:
        self.it.sql(self.way[0])

    def stop_meddling(self) -> None:
        self.it.sql(self.way[1])

    def rows(self) -> list[tuple[Any, ...]]:
        """What somebody sees from whom nothing is hidden."""
        columns = "k, v" if "_epoch" not in self.it.sink.carried_lineage else "k, v, _offset, _row"
        return sorted(map(tuple, self.admin(f"SELECT {columns} FROM public.t")))

    def stands(self) -> tuple[Any, ...]:
        told = "SELECT epoch_id, state, undone_by FROM epochline.epochs WHERE state = 'COMMITTED' ORDER BY 1"
        heads = "SELECT partition, next_offset FROM epochline.heads ORDER BY 1"
        return self.rows(), self.it.sql(heads), self.it.sql(told)

    def exact_or_refused(self, step: Callable[[], object], rows: Callable[[], object]) -> bool:
        """Do a step while somebody meddles; whether it was done, and done exactly. Else nothing was changed."""
        before = self.stands()
        self.meddle()
        try:
            step()
        except EpochlineError:
            assert self.stands() == before
            return False
        finally:
            self.stop_meddling()
        rows()
        return True

    def act(self, what: str, **asked: Any) -> None:
        self.it.act(what, ORDER, **asked)

    def seal(self, planned: Plan) -> None:
        self.it.seal_staged(planned, *self.mode.second)

    def is_whole(self) -> None:
        assert [row[:2] for row in self.rows()] == self.mode.rows


NewWorld = Callable[[str, str], MeddledTable]


@pytest.fixture
def world(bench: NewBench, as_superuser: AsSuperuser) -> NewWorld:
    def make(mode: str, way: str) -> MeddledTable:
        return MeddledTable(bench(existing=MODES[mode].ddl, **MODES[mode].sink), as_superuser, MODES[mode], WAYS[way])

    return make


FAST = ("append", "upsert", "add", "replace")
ALL_MODES = [pytest.param(mode, marks=() if mode in FAST else pytest.mark.slow) for mode in MODES]


@pytest.mark.fault("F41")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ALL_MODES)
def test_whatever_a_table_does_with_rows_an_epoch_is_written_exactly_or_refused(
    world: NewWorld, mode: str, way: str, recovery: Recovery
) -> None:
    """INV-9, F41: at the seal, in the commit, in the recovery by a later plan, and in a restore."""
    it = world(mode, way)
    it.it.epoch(*FIRST)
    first = it.rows()
    if it.mode.restored:
        it.act("savepoint", name="first")
    planned = it.it.plan(*it.mode.second)

    sealed = it.exact_or_refused(lambda: it.seal(planned), lambda: None)
    if not sealed:
        it.seal(planned)
    committed = it.exact_or_refused(lambda: it.it.commit(planned), it.is_whole)
    if not committed and not it.exact_or_refused(it.it.plan, it.is_whole):
        recovery.last_fault()
        it.it.commit(planned)
        recovery.took()
    it.is_whole()
    if not it.mode.restored:
        return
    if not it.exact_or_refused(lambda: it.act("restore", name="first"), lambda: None):
        it.act("restore", name="first")

    assert it.rows() == first
    again = it.it.plan()
    it.seal(again)
    it.it.commit(again)
    it.is_whole()


def replayed(it: MeddledTable) -> Any:
    it.it.runs += 1
    planned = plan_replay(it.it.subject, 2, run(f"run-{it.it.runs}"))
    it.seal(planned)
    return planned.epoch


@pytest.mark.fault("F41")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["append", pytest.param("append with a key", marks=pytest.mark.slow)])
def test_whatever_a_table_does_with_rows_a_replay_takes_the_epochs_place_or_is_refused(
    world: NewWorld, mode: str, way: str
) -> None:
    """INV-9, F41: no row of both."""
    it = world(mode, way)
    it.it.epoch(*FIRST)
    it.it.epoch(*it.mode.second)
    whole, replay = it.rows(), replayed(it)

    if not it.exact_or_refused(lambda: promote(it.it.subject, replay, ORDER), lambda: None):
        promote(it.it.subject, replay, ORDER)

    assert it.rows() == whole
    assert it.it.sql("SELECT DISTINCT _epoch FROM t ORDER BY 1") == [(1,), (3,)]


@pytest.mark.fault("F41")
@pytest.mark.parametrize("when", [{"timing": "AFTER"}, DEFERRED], ids=["now", "deferred"])
def test_a_replay_whose_epoch_does_not_go_can_be_compared_and_its_promotion_says_why(
    world: NewWorld, when: dict[str, str]
) -> None:
    """INV-9, F41: the trial takes the same look at what goes as the promotion, and blames no row of the replay."""
    it = world("append with a key", "trigger on insert")
    it.it.epoch(*FIRST)
    it.it.epoch(*it.mode.second)
    whole = it.rows()
    it.it.sql(trigger("DELETE", COMES_BACK, **when))
    replay = replayed(it)
    with pytest.raises(EpochlineError, match="a trigger or rule of the table drops rows|duplicate key"):
        promote(it.it.subject, replay, ORDER)
    assert it.rows() == whole
    it.stop_meddling()

    promote(it.it.subject, replay, ORDER)

    assert it.rows() == whole


@pytest.mark.fault("F41")
def test_a_replay_whose_rows_take_others_away_is_not_sealed(world: NewWorld) -> None:
    """INV-9, F41: found before the promotion, which would find it."""
    it = world("append", "trigger that deletes afterwards")
    it.mode = replace(it.mode, second=[row for row in it.mode.second if row["k"] != "frozen"])
    it.it.epoch(kv("frozen", 1))
    it.it.epoch(*it.mode.second)
    it.meddle()

    with pytest.raises(SealRefusedError, match="of 1 other rows 0"):
        replayed(it)
