"""The database itself refuses a ledger that would lie: direct SQL, as the owner of the tables, against real PostgreSQL."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors, sql
from psycopg2.extras import RealDictCursor

from epochline.coordinator import abort
from epochline.declare.version import VERSION
from epochline.errors import VersionError
from epochline.local.stack import Stack
from epochline.postgres.ledger import migrate
from epochline.postgres.queries.versions import head_revision
from tests.contract.worlds import postgres_world, run
from tests.databases import BY_HAND, as_admin, query, set_aside
from tests.integration.published_queries import queries

RANGE = """
INSERT INTO epochline.committed_range
    (pipeline, generation, topic, topic_id, partition, start_offset, until_offset, epoch_id, chosen_by)
VALUES ('p', 1, 't', 'id', 0, %s, %s, %s, 'epoch')
"""
EPOCH = """
INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, dag_id, run_id, host, declaration_hash, lease_until,
                             pre_committed_at, aborted_at, committed_at)
VALUES ('p', %s, 1, %s, 'd', 'r', 'h', 'hash', now(), now(), %s, %s)
"""
ATTEMPT = """
INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host) VALUES ('p', 1, %s, 'd', 'r', 'h')
"""
CLOSED = "2026-01-01"
Execute = Callable[..., Any]
"""Runs a statement with its values; gives its rows, or how many it changed."""


@pytest.fixture
def sql_of(postgres_dsn: str) -> Iterator[Execute]:
    """As the ledger's owner, each statement in a transaction of its own; epochs 1 to 3, chain [5, 10), [10, 20)."""
    connection = psycopg2.connect(postgres_dsn)
    connection.autocommit = True

    def execute(statement: str, *values: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    execute(BY_HAND)
    execute("INSERT INTO epochline.pipeline (pipeline) VALUES ('p')")
    execute("INSERT INTO epochline.declaration (hash, pipeline, body) VALUES ('hash', 'p', '{}')")
    for epoch_id in (1, 2, 3):
        execute(EPOCH, epoch_id, "COMMITTED", None, CLOSED)
    execute(RANGE, None, 5, None)
    execute(RANGE, 5, 10, 1)
    execute(RANGE, 10, 20, 2)
    yield execute
    connection.close()


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        pytest.param((25, 30, 3), errors.ForeignKeyViolation, id="a gap"),
        pytest.param((15, 30, 3), errors.ForeignKeyViolation, id="an overlap inside a range"),
        pytest.param((10, 30, 3), errors.UniqueViolation, id="an overlap from a range's start"),
        pytest.param((5, 7, 3), errors.UniqueViolation, id="a part of a range again"),
        pytest.param((0, 5, 3), errors.UniqueViolation, id="a range before the origin"),
        pytest.param((10, 20, 3), errors.UniqueViolation, id="the same range twice"),
        pytest.param((20, 20, 3), errors.CheckViolation, id="an empty range"),
        pytest.param((20, 10, 3), errors.CheckViolation, id="a backward range"),
        pytest.param((20, 30, None), errors.CheckViolation, id="a range of no epoch"),
        pytest.param((20, 30, 9), errors.ForeignKeyViolation, id="a range of an unknown epoch"),
        pytest.param((None, 0, None), errors.UniqueViolation, id="a second origin"),
        pytest.param((None, 99, 3), errors.CheckViolation, id="an origin by an epoch"),
    ],
)
def test_a_range_that_breaks_the_chain_is_refused(
    sql_of: Execute, values: tuple[Any, ...], refusal: type[Exception]
) -> None:
    """INV-1, S6, U2."""
    with pytest.raises(refusal):
        sql_of(RANGE, *values)

    assert sql_of("SELECT count(*) FROM epochline.committed_range") == [(3,)]
    assert sql_of(RANGE, 20, 30, 3) == 1, "the next range is accepted"


@pytest.mark.parametrize("hole", [False, True], ids=["whole", "with a hole"])
def test_ranges_may_come_in_any_order_but_must_be_whole_at_the_commit(sql_of: Execute, hole: bool) -> None:
    """INV-1: the key is deferrable, for repairs; a hole does not get past the COMMIT.

    Nothing ends twice, even while the key is deferred, so that no two ranges can lead to the same head.
    """
    begin = "BEGIN; SET CONSTRAINTS epochline.starts_where_one_ended DEFERRED"
    sql_of(begin)
    with pytest.raises(errors.UniqueViolation, match="nothing_ends_twice"):
        sql_of(RANGE, 17, 20, 3)
    sql_of("ROLLBACK")

    sql_of(begin)
    sql_of(RANGE, 30, 40, 3)
    if hole:
        with pytest.raises(errors.ForeignKeyViolation, match="starts_where_one_ended"):
            sql_of("COMMIT")
    else:
        sql_of(RANGE, 20, 30, 3)
        sql_of("COMMIT")

    assert sql_of("SELECT max(until_offset) FROM epochline.committed_range") == [(20 if hole else 40,)]


def test_the_origin_moves_back_only_together_with_the_range_that_fills_the_gap(sql_of: Execute) -> None:
    """INV-1: extend-back commits what lies before the origin; the chain stays one interval."""
    back = "UPDATE epochline.committed_range SET until_offset = 2 WHERE start_offset IS NULL"
    with pytest.raises(errors.ForeignKeyViolation, match="starts_where_one_ended"):
        sql_of(back)

    sql_of(
        f"BEGIN; SET CONSTRAINTS epochline.starts_where_one_ended DEFERRED; {back};"
        f" {RANGE.replace('%s', '{}').format(2, 5, 3)}; COMMIT"
    )

    links = sql_of("SELECT start_offset, until_offset FROM epochline.committed_range ORDER BY until_offset")
    assert links == [(None, 2), (2, 5), (5, 10), (10, 20)]


PLANNED = """
INSERT INTO epochline.planned_range (pipeline, epoch_id, topic, topic_id, partition, start_offset, until_offset)
VALUES ('p', 3, 't', 'id', %s, %s, %s)
"""


@pytest.mark.parametrize("counts", [(10, 7, 2, 2), (11, 11, 0, 0)], ids=["no balance", "too many"])
def test_counts_that_do_not_balance_are_refused(sql_of: Execute, counts: tuple[int, ...]) -> None:
    """INV-9."""
    sql_of(PLANNED, 0, 20, 30)
    fill = (
        "UPDATE epochline.planned_range SET records_read = %s, records_passed = %s, records_skipped = %s,"
        " records_quarantined = %s, start_offset = 20"
    )

    with pytest.raises(errors.CheckViolation):
        sql_of(fill, *counts)
    assert sql_of(fill, 10, 7, 2, 1) == 1


def test_an_epoch_has_one_live_attempt(sql_of: Execute) -> None:
    """INV-4: a second one is accepted only after the first was fenced."""
    sql_of(ATTEMPT, 1)
    with pytest.raises(errors.UniqueViolation, match="one_live_attempt"):
        sql_of(ATTEMPT, 2)

    sql_of("UPDATE epochline.attempt SET fenced_at = now()")

    with pytest.raises(errors.UniqueViolation):
        sql_of(ATTEMPT, 1)
    assert sql_of(ATTEMPT, 2) == 1


Statement = tuple[Any, ...]
OPEN, A_RANGE = ("PLANNED", "PRE_COMMITTED"), (PLANNED, 0, 20, 30)
COMMITTED_ONCE, PLANNED_ONCE = ("committed_range is written once", "planned_range is written once")
REFUSED: dict[str, tuple[Statement | None, Statement, type[Exception], str]] = {
    **{
        f"of the chain, {what}": (None, (statement,), errors.IntegrityConstraintViolation, COMMITTED_ONCE)
        for what, statement in {
            "a link taken out of the middle": "DELETE FROM epochline.committed_range WHERE start_offset = 5",
            "the origin taken away": "DELETE FROM epochline.committed_range WHERE start_offset IS NULL",
            "the newest link taken away": "DELETE FROM epochline.committed_range WHERE start_offset = 10",
            "a link shortened": "UPDATE epochline.committed_range SET until_offset = 9 WHERE start_offset = 5",
            "the origin moved on": "UPDATE epochline.committed_range SET until_offset = 6 WHERE start_offset IS NULL",
        }.items()
    },
    **{
        f"of a planned range, {change}": (
            A_RANGE, (f"UPDATE epochline.planned_range SET {change}",), errors.IntegrityConstraintViolation, PLANNED_ONCE
        )
        for change in (
            "start_offset = 21", "until_offset = 31", "partition = 4", "topic_id = 'x'", "topic = 'x'", "epoch_id = 2"
        )
    },
    "a planned range that is empty": (None, (PLANNED, 0, 5, 5), errors.CheckViolation, ""),
    "a planned range that goes backward": (None, (PLANNED, 0, 5, 4), errors.CheckViolation, ""),
    "a planned range below 0": (None, (PLANNED, 0, -1, 4), errors.CheckViolation, ""),
    **{
        f"{second} beside {first}": (
            (EPOCH, 4, first, None, None), (EPOCH, 5, second, None, None), errors.UniqueViolation, "one_unfinished_epoch"
        )
        for first, second in itertools.product(OPEN, OPEN)
    },
    "an epoch that is committed without a time": (
        None, (EPOCH, 4, "COMMITTED", None, None), errors.CheckViolation, ""
    ),
    "an epoch that is planned with a commit time": (None, (EPOCH, 4, "PLANNED", None, CLOSED), errors.CheckViolation, ""),
    "an epoch that is aborted without a time": (None, (EPOCH, 4, "ABORTED", None, None), errors.CheckViolation, ""),
    "an epoch that is committed and aborted": (
        None, (EPOCH, 4, "COMMITTED", CLOSED, CLOSED), errors.CheckViolation, ""
    ),
    "an epoch in an unknown state": (None, (EPOCH, 4, "DONE", None, None), errors.CheckViolation, ""),
    "an epoch's id again": (None, (EPOCH, 3, "PLANNED", None, None), errors.UniqueViolation, ""),
}  # fmt: skip
"""What is refused: what was before, the statement, and how PostgreSQL refuses it."""


@pytest.mark.parametrize(("before", "statement", "refusal", "said"), REFUSED.values(), ids=REFUSED)
def test_what_a_ledger_never_holds_is_refused(
    sql_of: Execute, before: Statement | None, statement: Statement, refusal: type[Exception], said: str
) -> None:
    """INV-1, INV-3, K14, C5: ranges are written once, one epoch is unfinished, states agree with their times."""
    if before is not None:
        sql_of(*before)

    with pytest.raises(refusal, match=said or None):
        sql_of(*statement)


# Migrations


@pytest.fixture
def empty_dsn(stack: Stack, postgres_dsn: str) -> str:
    name = f"empty_{postgres_dsn.rsplit('/', 1)[-1]}"
    as_admin(stack.postgres.superuser_dsn, sql.SQL("CREATE DATABASE {} OWNER epochline").format(sql.Identifier(name)))
    return stack.postgres.dsn(name)


def test_two_migrations_at_once_take_turns_and_a_third_changes_nothing(empty_dsn: str) -> None:
    barrier = threading.Barrier(2)

    def upgrade(_: int) -> str:
        barrier.wait()
        return migrate.upgrade(empty_dsn)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(upgrade, range(2))) == [head_revision()] * 2
    assert migrate.upgrade(empty_dsn) == head_revision()


@pytest.mark.fault("F35")
def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(sql_of: Execute, postgres_dsn: str) -> None:
    sql_of("UPDATE epochline.alembic_version SET version_num = '9999'")

    with pytest.raises(VersionError, match=f"at revision 9999, which epochline {VERSION} does not know"):
        migrate.upgrade(postgres_dsn)

    assert sql_of("SELECT version_num FROM epochline.alembic_version") == [("9999",)]


@pytest.mark.fault("F35")
def test_a_downgrade_is_refused(sql_of: Execute, postgres_dsn: str) -> None:
    with closing(psycopg2.connect(postgres_dsn)) as connection, connection:
        assert not migrate.run_migrations(connection, "0001")

    assert sql_of("SELECT version_num FROM epochline.alembic_version") == [(head_revision(),)]
    assert sql_of("SELECT count(*) FROM epochline.committed_range") == [(3,)]


# What people look at

Lived = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def lived(postgres_dsn: str) -> Lived:
    """A pipeline with two committed epochs, an aborted one and one on its way; answers queries."""
    world = postgres_world(postgres_dsn)
    world.to_committed("run-1", record_limit=6)
    world.plan("run-2", record_limit=2)
    world.begin(2, "run-2")
    abort(world.ledger, "orders", 2, run("run-2"), reason="a test says so")
    world.to_committed("run-3", record_limit=3)
    world.to_sealed("run-4", record_limit=3)
    return lambda statement: [dict(row) for row in query(postgres_dsn, statement, cursor_factory=RealDictCursor)]


def test_every_query_of_the_docs_says_what_it_answers() -> None:
    assert all(body.startswith("-- ") for body in queries().values())
    assert set(queries()) == {
        "where_is_each_pipeline", "what_is_unfinished", "is_the_chain_whole", "how_long_did_records_wait",
        "which_epoch_wrote_this_row",
        "what_was_quarantined", "attempts_and_fenced_writes", "what_is_not_shown_yet", "which_sinks_show_an_epoch",
    }  # fmt: skip


def test_the_docs_show_where_a_pipeline_is_and_what_became_of_it(lived: Lived, postgres_dsn: str) -> None:
    """U7."""
    heads, unfinished = lived(queries()["where_is_each_pipeline"]), lived(queries()["what_is_unfinished"])

    assert sum(one["next_offset"] for one in heads) == 9
    assert {(one["unfinished_epoch"], one["unfinished_state"]) for one in heads} == {(4, "PRE_COMMITTED")}
    assert {(one["epoch_id"], one["run_id"], one["lease_expired"]) for one in unfinished} == {(4, "run-4", False)}
    assert sum(one["until_offset"] - one["start_offset"] for one in unfinished) == 3
    shown = lived(queries()["attempts_and_fenced_writes"])
    assert [(one["epoch_id"], one["state"], one["rows_staged"]) for one in shown] == [
        (4, "SEALED", 3), (3, "COMMITTED", 3), (2, "FENCED", 0), (1, "COMMITTED", 6),
    ]  # fmt: skip
    assert shown[2]["error"] == "a test says so"
    [found] = lived(queries()["which_epoch_wrote_this_row"].replace("access_log", "orders"))
    assert (found["epoch_id"], found["run_id"], found["_offset"]) == (1, "run-1", 0)

    set_aside(postgres_dsn, 3, value=b"\xff\0", reason="not UTF-8")
    [found] = lived(queries()["what_was_quarantined"])
    assert (found["offset"], found["reason"], found["value_begins"]) == (3, "not UTF-8", r"\377\000")


PLANTED = {
    "a gap": "DELETE FROM epochline.committed_range WHERE epoch_id = 1",
    "an overlap": "UPDATE epochline.committed_range SET start_offset = start_offset - 1 WHERE epoch_id = 3",
    "no origin": "DELETE FROM epochline.committed_range WHERE start_offset IS NULL AND partition = 0",
    "a second origin": "UPDATE epochline.committed_range SET start_offset = NULL, epoch_id = NULL WHERE epoch_id = 1",
}


@pytest.mark.parametrize("damage", PLANTED.values(), ids=PLANTED.keys())
def test_the_docs_query_finds_broken_chains_alone(lived: Lived, postgres_dsn: str, damage: str) -> None:
    """INV-1, U2: damage that the constraints would refuse, planted in a transaction that drops them and is rolled back."""
    asked = queries()["is_the_chain_whole"]
    assert lived(asked) == []

    with closing(psycopg2.connect(postgres_dsn)) as session, session.cursor() as cursor:
        cursor.execute("DROP TRIGGER committed_is_written_once ON epochline.committed_range")
        cursor.execute("ALTER TABLE epochline.committed_range DROP CONSTRAINT starts_where_one_ended")
        cursor.execute("ALTER TABLE epochline.committed_range DROP CONSTRAINT nothing_starts_twice")
        cursor.execute(damage)
        assert cursor.rowcount > 0
        cursor.execute(asked)
        assert cursor.fetchall() != []

    assert lived(asked) == []
