"""State that was changed outside of epochs, also past its triggers: found by the next plan, the commit and an audit."""

import pytest
from psycopg2 import sql

from epochline.errors import EpochlineError, LedgerError, StateError
from epochline.local.stack import Stack
from epochline.operations import ACTIONS
from tests.crash.reliability import Recovery
from tests.driver import epoch_of
from tests.integration.counting import Counting
from tests.integration.logins import superuser
from tests.integration.operating import act


@pytest.fixture
def counting(postgres_dsn: str, stack: Stack) -> Counting:
    line = Counting(postgres_dsn, superuser(stack, postgres_dsn))
    line.epoch({"word": "a", "count": 1}, {"word": "b", "count": 2})
    return line


# An edit, what the refusal says of it, and what takes it back.
EDITS = {
    "another value": (
        "UPDATE words SET count = 7 WHERE word = 'a'", "the same number of keys with other values",
        "UPDATE words SET count = 1 WHERE word = 'a'",
    ),
    "a key less": ("DELETE FROM words WHERE word = 'a'", "it now holds [12] key", "INSERT INTO words VALUES ('a', 1, 1)"),
    "a key more": ("INSERT INTO words VALUES ('new', 1, 1)", "it now holds [34] key", "DELETE FROM words WHERE word = 'new'"),
    "emptied": ("TRUNCATE words", "it now holds 0 keys", "INSERT INTO words VALUES ('a', 1, 1), ('b', 2, 1)"),
    "of a later epoch": ("DELETE FROM epochline.state_version", "holds 2 keys, though no epoch has written any", None),
    "gone": ("DROP TABLE words", "words does not exist", None),
}  # fmt: skip


@pytest.mark.fault("F33")
@pytest.mark.parametrize("edit", EDITS)
def test_state_that_is_not_what_the_last_epoch_left_stops_the_pipeline(counting: Counting, edit: str) -> None:
    """S14: before anything is planned, and again before anything is committed; put back, the pipeline goes on."""
    statement, said, undo = EDITS[edit]
    sealed = counting.sealed({"word": "c", "count": 3})
    before = counting.counts("t")
    counting.sql(statement)

    for step in (lambda: counting.commit(sealed), counting.preview):
        with pytest.raises(EpochlineError, match=said):
            step()

    assert counting.counts("t") == before
    if undo is None:
        counting.abort(2, epoch_of(sealed).run, by_operator=True)
    else:
        counting.sql(undo)
        counting.commit(sealed)
        assert counting.counts() == counting.counts("t") == [("a", 1), ("b", 2), ("c", 3)]
        counting.sql(statement)
    with pytest.raises(EpochlineError, match=said):
        counting.plan()


EDIT = "UPDATE words SET count = count + 97 WHERE word = 'a'"
OFF, ON = "ALTER TABLE words DISABLE TRIGGER ALL", "ALTER TABLE words ENABLE TRIGGER ALL"
USER_OFF, USER_ON = (one.replace("ALL", "USER") for one in (OFF, ON))
ALWAYS = [
    f"ALTER TABLE words ENABLE ALWAYS TRIGGER epochline_follow_state_{one}"
    for one in ("insert", "update", "delete", "truncate")
]
REPLICA = "ALTER TABLE words ENABLE REPLICA TRIGGER epochline_follow_state_replicated"
REPLICATE, ORIGIN = "SET session_replication_role = replica", "SET session_replication_role = origin"
DUMP = ["CREATE TABLE dump AS TABLE words", "UPDATE dump SET count = 98 WHERE word = 'a'"]
AS_IT_WAS = "epochline_follow_state_update AFTER UPDATE ON words REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION epochline.follow_state()"
MADE_AGAIN = ["DROP TRIGGER epochline_follow_state_update ON words", EDIT, f"CREATE TRIGGER {AS_IT_WAS}"]
INHERITED = [
    "CREATE TABLE above (word text, count bigint)", "ALTER TABLE words INHERIT above",
    "UPDATE above SET count = 98 WHERE word = 'a'",
]  # fmt: skip
THROUGH = "CREATE TABLE above ()", "ALTER TABLE words INHERIT above", "DELETE FROM above"
PAST = {
    # As a subscription: triggers of rows fire, and no trigger of a statement. Such a parent leaves nothing in the catalog.
    "rows alone": [REPLICATE, *THROUGH, "ALTER TABLE words NO INHERIT above"],
    "disabled": [OFF, EDIT, ON],
    "disabled, and made as before": [USER_OFF, EDIT, USER_ON, *ALWAYS, REPLICA],
    "one of them disabled": ["ALTER TABLE words DISABLE TRIGGER epochline_follow_state_update", EDIT, ALWAYS[1]],
    "pg_restore --disable-triggers": [*DUMP, OFF, "DELETE FROM words", "INSERT INTO words TABLE dump", ON],
    "replica": [REPLICATE, EDIT, ORIGIN],
    "replica, a copy": [*DUMP, REPLICATE, "TRUNCATE words", "INSERT INTO words TABLE dump", ORIGIN],
    "dropped and made again": MADE_AGAIN,
    "dropped and made as before": [*MADE_AGAIN, ALWAYS[1]],
    "a type changed": ["ALTER TABLE words ALTER count TYPE bigint USING count + 97"],
    "a column made again": ["ALTER TABLE words DROP count, ADD count bigint DEFAULT 7"],
    "a column made again, after _epoch": [
        "ALTER TABLE words DROP count", "ALTER TABLE words ADD count bigint", USER_OFF, "UPDATE words SET count = 9", USER_ON,
    ],
    "through a parent": INHERITED,
    "through a parent that is gone": [*INHERITED, "ALTER TABLE words NO INHERIT above"],
    "attached, written through the parent, detached": [
        "CREATE TABLE above (LIKE words) PARTITION BY LIST (word)", "ALTER TABLE above ATTACH PARTITION words DEFAULT",
        INHERITED[-1], "ALTER TABLE above DETACH PARTITION words",
    ],
    "a child with rows": ["CREATE TABLE below () INHERITS (words)", "INSERT INTO below VALUES ('a', 98, 1)"],
    "another table in its place": [
        "CREATE TABLE other (LIKE words INCLUDING ALL)", "ALTER TABLE other OWNER TO epochline", "INSERT INTO other TABLE words", "UPDATE other SET count = 98 WHERE word = 'a'",
        "ALTER TABLE words RENAME TO words_old", "ALTER TABLE other RENAME TO words",
    ],
}  # fmt: skip
"""Statements that leave other rows in the state table than the last epoch did, in one transaction of a superuser."""


def past(line: Counting, statements: list[str]) -> None:
    line.by_superuser(*statements)
    if "ALTER TABLE other RENAME TO words" in statements:
        with pytest.raises(StateError, match="triggers of state words are missing or disabled.*epochline migrate"):
            line.preview()
        line.create()


@pytest.mark.fault("F48")
@pytest.mark.parametrize("way", PAST)
def test_state_that_was_written_past_its_triggers_stops_the_next_plan_and_the_commit(
    counting: Counting, way: str
) -> None:
    """S14, INV-2: however the triggers were passed, and whatever they are now."""
    planned = counting.sealed({"word": "c", "count": 3})
    before = counting.counts()

    past(counting, PAST[way])

    assert counting.counts() != before
    for step in (lambda: counting.commit(planned), counting.preview):
        with pytest.raises(StateError, match="was changed outside of epochs: epoch 1 left 2 keys"):
            step()
    (found,) = counting.audited()
    assert found.startswith("words: changed (epoch 1): epoch 1 left 2 keys, it now holds")


HARMLESS = {
    "disabled and enabled": [OFF, ON],
    "edited and put back": [OFF, EDIT, "UPDATE words SET count = 1 WHERE word = 'a'", ON],
    "written again, as it was": ["ALTER TABLE words SET UNLOGGED", "ALTER TABLE words SET LOGGED"],
    "another right and an index": ["GRANT SELECT ON words TO PUBLIC", "CREATE INDEX ON words (count)", "ANALYZE words"],
    "replicated, as it was": [REPLICATE, "DELETE FROM words", "INSERT INTO words VALUES ('a', 1, 1), ('b', 2, 1)"],
    "a parent that adds nothing": ["CREATE TABLE above (word text)", "ALTER TABLE words INHERIT above"],
    "another table in its place": [one for one in PAST["another table in its place"] if "98" not in one],
}


@pytest.mark.parametrize("way", HARMLESS)
def test_a_pipeline_goes_on_after_what_left_its_state_as_it_was(counting: Counting, way: str) -> None:
    """S14: what counts is what the table holds, not who touched it; before the triggers are mended and after."""
    past(counting, HARMLESS[way])

    counting.epoch({"word": "a", "count": 10}, {"word": "c", "count": 3})
    counting.create()
    counting.epoch({"word": "d", "count": 4})

    assert counting.counts() == [("a", 10), ("b", 2), ("c", 3), ("d", 4)]
    assert counting.audited() == []


def test_a_plan_does_not_read_the_state_that_its_triggers_have_counted(counting: Counting) -> None:
    """C8: the cost of the check depends on the keys that an epoch touches."""
    counting.epoch({"word": "c", "count": 3})
    counting.sql(
        "CREATE OR REPLACE FUNCTION epochline.state_digest(schema_name text, table_name text, OUT keys bigint, OUT"
        " digest numeric) LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'the whole table is read'; END$$"
    )

    counting.epoch({"word": "a", "count": 10})

    counting.by_superuser(OFF, ON)
    with pytest.raises(LedgerError, match="the whole table is read"):
        counting.preview()


def test_triggers_that_are_off_are_refused_and_migrate_mends_them(counting: Counting) -> None:
    """S14, and the ledger of an earlier release, whose triggers a replicating session passed."""
    counting.by_superuser(OFF)
    with pytest.raises(StateError, match="triggers of state words are missing or disabled.*epochline migrate"):
        counting.preview()
    counting.create()
    counting.epoch({"word": "c", "count": 3})
    # As a release before this one made them: they do not fire for a session that replicates.
    counting.by_superuser(ON)
    counting.epoch({"word": "c", "count": 4})
    counting.by_superuser(*PAST["replica"])
    with pytest.raises(StateError, match="it now holds the same number of keys with other values"):
        counting.preview()


@pytest.mark.fault("F48")
def test_accepted_state_is_what_the_next_epochs_go_on_from(counting: Counting, recovery: Recovery) -> None:
    """S14: somebody decides, once no epoch is unfinished that was made from the state as it was."""

    def refusal() -> str:
        accept = ACTIONS["accept-state"]
        return str(accept.preview(counting.subject, accept.parse({})).refusal)

    assert "there is nothing to accept" in refusal()
    sealed = counting.sealed({"word": "b", "count": 3})
    past(counting, PAST["disabled"])
    assert "abort it first" in refusal()
    counting.abort(2, epoch_of(sealed).run, by_operator=True)
    with pytest.raises(StateError, match="epochline accept-state orders"):
        counting.preview()
    recovery.last_fault()

    done = act(counting, "accept-state")

    assert done.row.before["words"]["keys"] == 2
    assert done.row.before != done.row.after
    assert counting.audited() == []
    counting.epoch({"word": "b", "count": 3})
    assert counting.counts() == [("a", 98), ("b", 3)]
    assert counting.audited() == []
    recovery.took()


def test_a_savepoint_brings_edited_state_back_and_an_edited_copy_is_refused(counting: Counting) -> None:
    """C12, S14, INV-2: the rows that no trigger counted are gone with the others; a changed copy puts nothing back."""
    act(counting, "savepoint", name="one")
    past(counting, PAST["pg_restore --disable-triggers"])
    with pytest.raises(StateError, match="was changed outside of epochs"):
        act(counting, "savepoint", name="two")

    act(counting, "restore", name="one")

    assert counting.counts() == [("a", 1), ("b", 2)]
    assert counting.audited() == []
    counting.epoch({"word": "b", "count": 3})
    ((copy,),) = counting.sql("SELECT table_name FROM epochline.savepoint_state")
    counting.sql(sql.SQL("UPDATE epochline.{} SET count = 5").format(sql.Identifier(copy)))
    with pytest.raises(StateError, match="the copy of words is not what was saved"):
        act(counting, "restore", name="one")
    assert counting.counts() == counting.counts("t") == [("a", 1), ("b", 3)]


@pytest.mark.parametrize("body", ["RETURN NULL;", "NEW.count = 7; RETURN NEW;"], ids=["dropped", "changed"])
@pytest.mark.parametrize("own", [True, False], ids=["its own", "another's"])
def test_state_that_a_trigger_drops_or_changes_does_not_come_back(counting: Counting, body: str, own: bool) -> None:
    """C12, C13, INV-9: each row of a savepoint's state is there with its values, or nothing is changed."""
    act(counting, "savepoint", name="one")
    asked, table = {"name": "one"}, "words"
    if not own:
        asked, table = {"name": "one", "of": "orders"}, "others"
        [sink], [state] = counting.pipeline.sinks, counting.pipeline.states
        sinks, states = (sink.model_copy(update={"table": "u"}),), (state.model_copy(update={"table": table}),)
        others = {"name": "second", "sinks": sinks, "state": states}
        counting.pipeline = counting.pipeline.model_copy(update=others)
        counting.create()
    before = counting.counts(table)
    counting.sql(
        f"CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW.word = 'b' THEN {body} END IF;"
        f" RETURN NEW; END$$; CREATE TRIGGER meddle BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION meddle()"
    )

    with pytest.raises(StateError, match=f"the copy of {table} is not what was saved"):
        act(counting, "restore", **asked)

    assert counting.counts(table) == before
    counting.sql("DROP FUNCTION meddle CASCADE")
    act(counting, "restore", **asked)
    assert counting.counts(table) == [("a", 1), ("b", 2)]
