"""F35: this code upgrades a ledger of release 0.1.0, reads and finishes what that release wrote, and goes on."""

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from packaging.version import Version

from epochline.coordinator import PlanOutcome
from epochline.declare.version import VERSION
from epochline.errors import EpochlineError, VersionError
from epochline.operations import Request
from epochline.postgres.ledger import migrate
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.migrate import upgrade
from epochline.postgres.queries.session_settings import set_local
from epochline.postgres.queries.versions import REVISIONS, head_revision
from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.chains import chain_breaks
from tests.commands import Call
from tests.contract.worlds import World, postgres_world
from tests.crash.reliability import Recovery
from tests.databases import query
from tests.integration.page_views import pipelines
from tests.waiting import wait_until

RELEASED = Path(__file__).with_name("ledger_0_1_0.sql").read_text()
TABLES = "0001"
"""The migration that made the tables of the release."""
ROWS = "SELECT value, _partition, _offset, _epoch FROM orders ORDER BY 2, 3"
EPOCHS = "SELECT epoch_id, state, records_read, rows_written FROM epochline.epochs ORDER BY 1"


@pytest.fixture
def old(postgres_dsn: str) -> str:
    """The libpq URL of a database of release 0.1.0 with an aborted, a committed and a sealed epoch."""
    query(postgres_dsn, "DROP SCHEMA epochline, epochline_staging CASCADE")
    with closing(psycopg2.connect(postgres_dsn)) as connection, connection:
        migrate.run_migrations(connection, TABLES)
    query(postgres_dsn, RELEASED)
    return postgres_dsn


def test_the_first_migration_makes_the_tables_of_the_release() -> None:
    """Whatever its comments say."""
    script = Path(migrate.__file__).parent / "migrations" / "versions" / f"{TABLES}_ledger.sql"
    statements = " ".join(re.sub("--.*", "", script.read_text()).split())
    schemas = "".join(f"CREATE SCHEMA IF NOT EXISTS {name}; " for name in ("epochline", "epochline_staging"))

    assert (
        hashlib.sha256(f"{schemas}{statements}".encode()).hexdigest()
        == "dca9c8e5e9281162033110f8e6abe58c928dc99320746cf6b76fdac6691852d2"
    )


def test_each_migration_states_the_oldest_version_that_may_go_on_after_it() -> None:
    """From 0013 on, which began it; a version that this code refuses would refuse itself."""
    stated = {name: re.findall(r"oldest_version = '(.*)'", script.read_text()) for name, script in REVISIONS.items()}

    assert {name for name, versions in stated.items() if len(versions) != 1} == {f"{n:04}" for n in range(1, 13)}
    assert all(Version(versions[0]) <= Version(VERSION) for versions in stated.values() if versions)


def everything(dsn: str) -> dict[str, list[Any]]:
    """The rows of the ledger and of every target, by table."""
    tables = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text IN %s"
    names = query(dsn, tables, ("epochline", "epochline_staging", "public"))
    return {name: query(dsn, f"SELECT t::text FROM {name} t ORDER BY 1") for (name,) in names}


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "not allowed"])
@pytest.mark.fault("F35")
def test_a_ledger_that_a_newer_version_migrated_says_whether_this_one_may_go_on(
    world: World, postgres_dsn: str, on_ledger: Call, allowed: bool
) -> None:
    """Each task, the Spark job, the commands and the pages in Airflow: all of them go on, or none does anything."""
    planned, ticket = world.to_begun()
    oldest = VERSION if allowed else "9.0.0"
    query(postgres_dsn, "UPDATE epochline.alembic_version SET version_num = '9999', oldest_version = %s", oldest)
    before = everything(postgres_dsn)
    steps: dict[str, Callable[[], object]] = {
        "plan_epoch": world.plan,
        "the job's plan": lambda: read_plan(postgres_dsn, "orders", 1, 1),
        "the job's parts": lambda: world.stage(planned, ticket),
        "seal": lambda: world.seal(ticket),
        "commit_epoch": lambda: world.commit(planned),
        "publish": world.publish,
        "abort_epoch": world.abort,
        "an action": lambda: world.act("pause", Request(actor="me", reason="a test")),
        "the pages": lambda: pipelines(postgres_dsn),
    }

    refused = {}
    for name, step in steps.items():
        try:
            step()
        except EpochlineError as error:
            refused[name] = str(error)
    code, _, said = on_ledger("ledger", "orders")

    if allowed:
        assert (refused, code, world.epoch(1).state, len(world.visible())) == ({}, 0, EpochState.COMMITTED, 15)
    else:
        message = (
            f"The ledger is at revision 9999 and allows epochline 9.0.0 and newer; this is {VERSION}. Nothing was changed."
            " Install epochline 9.0.0 or newer for this process, and restart it."
        )
        assert refused == dict.fromkeys(steps, message)
        assert (code, " ".join(said.split())) == (1, f"error: {message}")
        assert everything(postgres_dsn) == before


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO epochline.pipeline (pipeline) VALUES ('other')",
        "INSERT INTO epochline.epoch SELECT * FROM epochline.epoch",
        "UPDATE epochline.epoch SET state = 'ABORTED', aborted_at = now()",
        "INSERT INTO epochline.attempt (pipeline, epoch_id, attempt) VALUES ('orders', 1, 9)",
        "INSERT INTO epochline.part (attempt_id, sink) VALUES (1, 'orders')",
        "UPDATE epochline.receipt SET tried_at = now()",
        "INSERT INTO epochline.action (pipeline) VALUES ('orders')",
    ],
    ids=lambda statement: " ".join(statement.split()[:3]),
)
@pytest.mark.fault("F35")
def test_a_session_that_says_no_version_takes_no_step_of_an_epoch(
    world: World, postgres_dsn: str, statement: str
) -> None:
    """Not even where a pooler gives it a session in which this version made its setting."""
    world.to_planned()
    with closing(psycopg2.connect(postgres_dsn)) as session, session.cursor() as cursor:
        cursor.execute(set_local({}))
        session.commit()

        with pytest.raises(psycopg2.Error, match=r"of epochline 0\.1\.0 or of no epochline.*allows epochline 0\.2\.0"):
            cursor.execute(statement)


@pytest.mark.fault("F56")
def test_a_migration_waits_for_every_transaction_that_the_older_revision_allowed(
    world: World, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """INV-2: nobody is stopped between its question for the version and its COMMIT, and nobody goes on without one."""
    planned = world.to_sealed()
    script = tmp_path / "9999_next.sql"
    script.write_text("UPDATE epochline.alembic_version SET oldest_version = '9.0.0'")
    waiting = (
        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'epochline.alembic_version'::regclass)"
    )

    with ThreadPoolExecutor(1) as threads, world.ledger.transaction() as tx:
        monkeypatch.setitem(REVISIONS, "9999", script)
        migration = threads.submit(upgrade, postgres_dsn)
        wait_until(lambda: query(postgres_dsn, waiting)[0][0])
        tx.epochs.lock("orders", 1)
        assert not migration.done()
    assert migration.result(60) == "9999"

    with pytest.raises(VersionError, match=r"allows epochline 9\.0\.0 and newer"):
        world.commit(planned)
    assert query(postgres_dsn, "SELECT state FROM epochline.epoch") == [("PRE_COMMITTED",)]


@pytest.fixture
def new(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
def upgraded(old: str) -> World:
    """The pipeline of the old ledger, in the hands of this code."""
    upgrade(old)
    return postgres_world(old)


@pytest.mark.fault("F35")
def test_what_was_committed_before_the_upgrade_stays_and_is_known(old: str) -> None:
    rows, epochs = query(old, ROWS), query(old, EPOCHS)
    assert query(old, "SELECT version_num FROM epochline.alembic_version") == [("0001",)]

    upgrade(old)

    assert query(old, "SELECT version_num FROM epochline.alembic_version") == [(head_revision(),)]
    assert (query(old, ROWS), query(old, EPOCHS)) == (rows, epochs)
    assert [state for _id, state, *_ in epochs] == ["ABORTED", "COMMITTED", "PRE_COMMITTED"]


@pytest.mark.fault("F35")
def test_an_upgrade_brings_every_view_and_function_and_a_repeat_changes_nothing(old: str, new: str) -> None:
    """An upgraded ledger has what a new one has; an outbox of the old release has a replica identity too."""
    query(old, "CREATE SCHEMA IF NOT EXISTS epochline_outbox; CREATE TABLE epochline_outbox.of_before (key bytea)")
    applied = "SELECT name, sha256, applied_at FROM epochline.definition ORDER BY name"
    parts = """
        SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'epochline'
        UNION ALL SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'epochline'::regnamespace AND contype <> 'n'
        UNION ALL SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'epochline'
        UNION ALL SELECT event_object_table, trigger_name, action_statement FROM information_schema.triggers
        WHERE trigger_schema = 'epochline'
        UNION ALL SELECT relname, relreplident::text, '' FROM pg_class
        WHERE relnamespace = 'epochline'::regnamespace AND relkind = 'r'
        UNION ALL SELECT viewname, '', definition FROM pg_views WHERE schemaname = 'epochline'
        UNION ALL SELECT proname, '', pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'epochline'::regnamespace
        ORDER BY 1, 2, 3"""

    upgrade(old)

    assert query(old, parts) == query(new, parts)
    identity = "SELECT relreplident::text FROM pg_class WHERE oid = 'epochline_outbox.of_before'::regclass"
    assert query(old, identity) == [("f",)]
    assert query(old, "SELECT epochline.take_epoch('reports', 'orders', 'orders')") == [(2,)]
    first = query(old, applied)
    assert [(name, len(sha256)) for name, sha256, _at in first] == [("functions", 64), ("roles", 64), ("views", 64)]
    upgrade(old)
    assert query(old, applied) == first


@pytest.mark.fault("F35")
def test_a_ledger_that_was_not_upgraded_is_refused_until_it_is(old: str) -> None:
    """No epoch is planned, and nothing changes; after the upgrade the same run plans and commits one."""
    epochs = query(old, EPOCHS)

    with pytest.raises(VersionError, match=rf"older than epochline {VERSION}: run `epochline migrate`"):
        postgres_world(old)

    assert query(old, EPOCHS) == epochs
    upgrade(old)
    world = postgres_world(old)
    world.to_committed("after it")
    assert world.epoch(4).state is EpochState.COMMITTED


@pytest.mark.fault("F35")
def test_an_epoch_sealed_before_the_upgrade_is_committed_after_it(upgraded: World, recovery: Recovery) -> None:
    """INV-5, INV-6: its staging is the old code's."""
    recovery.last_fault()
    receipt = upgraded.commit(3)

    assert receipt.outcome is CommitOutcome.COMMITTED
    assert upgraded.commit(3).outcome is CommitOutcome.ALREADY_COMMITTED
    assert upgraded.left_over() == 0
    recovery.took()


@pytest.mark.fault("F35")
def test_another_run_recovers_it_and_goes_on_where_the_old_code_stopped(
    upgraded: World, old: str, recovery: Recovery
) -> None:
    """INV-1, INV-6: every record once, by two versions of the code."""
    recovery.last_fault()
    planned = upgraded.to_committed("after the upgrade")

    assert planned.outcome is PlanOutcome.PLANNED
    assert planned.epoch is not None
    assert planned.epoch.epoch_id == 4
    assert any("committed epoch 3" in note for note in planned.notes)
    assert upgraded.epoch(3).state is EpochState.COMMITTED
    assert [row[:3] for row in upgraded.visible()] == [
        ("orders", partition, offset) for partition, records in ((0, 10), (1, 5)) for offset in range(records)
    ]
    latencies = query(old, "SELECT longest_latency_seconds IS NOT NULL FROM epochline.phases ORDER BY epoch_id")
    assert latencies == [(False,), (False,), (False,), (True,)]
    for partition in (0, 1):
        ranges = "SELECT start_offset, until_offset FROM epochline.committed_range WHERE partition = %s"
        assert chain_breaks(query(old, ranges, partition)) == []
    recovery.took()


@pytest.mark.fault("F35")
def test_a_run_that_was_aborted_before_the_upgrade_is_not_tried_on_a_range_that_was_taken(upgraded: World) -> None:
    """U5: across the upgrade as within one version."""
    upgraded.commit(3)

    planned = upgraded.plan("run-0")

    assert any("epoch 1 of orders is not tried again" in note for note in planned.notes)
