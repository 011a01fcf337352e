"""Least privilege (SEC-6), on a real server: what each role may do, what it may not, and who makes the roles."""

import itertools
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors, sql
from psycopg2.extensions import parse_dsn
from sqlalchemy.engine import make_url

from epochline.coordinator import abort
from epochline.errors import ConfigurationError, LedgerError
from epochline.local import credentials
from epochline.local.postgres import Postgres, binaries
from epochline.local.stack import Stack
from epochline.postgres.ledger.migrate import arrange_roles, upgrade
from epochline.postgres.ledger.parts import record_error, record_fenced_write
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.postgres.ledger.writer import check_writer
from epochline.protocol.epoch import AbortOutcome
from epochline.protocol.failures import RecordedError
from epochline.protocol.staging import StagingTicket
from tests.commands import caller, connect_to
from tests.contract.worlds import PostgresWriter, World, postgres_world, run
from tests.integration.logins import AsSuperuser, Login, execute, superuser, superuser_of, user
from tests.ports import choose_ports

REFUSED = (errors.InsufficientPrivilege, errors.WrongObjectType, errors.ObjectNotInPrerequisiteState)
KINDS = ("owner", "writer", "reader", "inspector")
ROLES = [f"epochline_{kind}" for kind in KINDS]


def grants(database: str, prefix: str, login: str) -> list[str]:
    """What a DBA has to run so that a login may migrate the database."""
    roles = [f"{prefix}_{kind}" for kind in KINDS]
    return [
        *(f'CREATE ROLE "{role}" NOLOGIN;' for role in roles),
        f'GRANT "{prefix}_writer" TO "{prefix}_owner";', f'GRANT "{prefix}_reader" TO "{prefix}_inspector";',
        f'GRANT "{prefix}_owner" TO "{login}";',
        *(f'GRANT CONNECT ON DATABASE "{database}" TO "{role}";' for role in roles),
        f'GRANT TEMPORARY ON DATABASE "{database}" TO "{prefix}_owner";',
    ]  # fmt: skip


def at(dsn: str, database: str) -> str:
    """The same login at another database."""
    return make_url(dsn).set(database=database).render_as_string(hide_password=False)


def denied(dsn: str, *statements: Any) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        execute(dsn, *statements)


@pytest.fixture
def owner(login: Login) -> str:
    return login("epochline_owner")


@pytest.fixture
def writer(login: Login, as_superuser: AsSuperuser) -> str:
    dsn = login("epochline_writer")
    as_superuser(f"GRANT {user(dsn)} TO epochline_owner")
    return dsn


@pytest.fixture
def world(postgres_dsn: str, owner: str, writer: str) -> World:
    """Everything by a login that is an owner and nothing else, but for staging, which the writer's login does."""
    made = postgres_world(postgres_dsn)  # as who migrates: makes the target
    made.ledger = PostgresLedger(owner, lock_timeout=2)
    made.writer = PostgresWriter(writer)
    return made


@pytest.fixture
def ticket(world: World) -> StagingTicket:
    world.plan()
    begun = world.begin(1)
    assert begun is not None
    return begun


@pytest.fixture
def staging(ticket: StagingTicket) -> sql.Identifier:
    return sql.Identifier("epochline_staging", ticket.table("orders").table)


def test_an_epoch_is_planned_sealed_and_committed_by_an_owner_and_staged_by_a_writer(world: World) -> None:
    """SEC-6: neither login owns a table of the ledger or the target; nothing needs more than its role has."""
    world.to_committed()
    world.kafka.produce("orders", 0, 3)
    world.to_committed("run-2")

    assert len(world.visible()) == 18
    assert world.heads() == {0: 13, 1: 5}
    assert world.left_over() == 0


@pytest.mark.usefixtures("ticket")
def test_one_owner_drops_the_staging_that_another_one_made(login: Login, as_superuser: AsSuperuser) -> None:
    """SEC-6, INV-7: staging belongs to the role, so any operator's login can end an epoch."""
    another = PostgresLedger(login("epochline_owner"))

    assert abort(another, "orders", 1, run(), reason="by hand") is AbortOutcome.ABORTED
    assert as_superuser("SELECT tablename FROM pg_tables WHERE schemaname = 'epochline_staging'") == []


def test_an_owner_ends_the_sessions_of_a_writer_that_it_fences(
    world: World, ticket: StagingTicket, staging: sql.Identifier, writer: str
) -> None:
    """INV-4, SEC-6: a zombie that holds its transaction open loses it, and the refused write is recorded."""
    with closing(psycopg2.connect(writer, application_name=ticket.application_name)) as zombie:
        cursor = zombie.cursor()
        cursor.execute(sql.SQL("INSERT INTO {} (value) VALUES ('late')").format(staging))

        assert abort(world.ledger, "orders", 1, run(), reason="fenced") is AbortOutcome.ABORTED

        with pytest.raises(psycopg2.OperationalError):
            cursor.execute("SELECT 1")
    assert execute(writer, "SELECT what FROM epochline.fenced_write") == [("its session was ended",)]


def test_a_writer_keeps_its_error_and_its_refused_writes(world: World, ticket: StagingTicket, writer: str) -> None:
    with closing(psycopg2.connect(writer)) as session, session, session.cursor() as cursor:
        assert record_error(cursor, ticket.attempt_id, RecordedError(error_class="BadRecordError", said="x"))
        record_fenced_write(cursor, ticket.attempt_id, 1, "here", "copy")
        record_fenced_write(cursor, ticket.attempt_id, 1, "here", "copy")  # a second time: nothing

    assert execute(writer, "SELECT error FROM epochline.attempt") == [("BadRecordError: x",)]
    assert execute(writer, "SELECT count(*) FROM epochline.fenced_write") == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM public.orders", "INSERT INTO public.orders (value) VALUES ('x')", "DELETE FROM public.orders",
        "DROP TABLE public.orders", "CREATE TABLE public.mine (a int)", "SELECT * FROM epochline.committed_range",
        "INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, until_offset,"
        " chosen_by) VALUES ('orders', 1, 't', 'i', 9, 0, 'x')",
        "UPDATE epochline.pipeline SET generation = 2",
        "UPDATE epochline.epoch SET state = 'PRE_COMMITTED', pre_committed_at = now()",
        "INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host)"
        " VALUES ('orders', 1, 2, 'd', 'r', 'h')",
        "UPDATE epochline.attempt SET sealed_at = now()", "UPDATE epochline.attempt SET fenced_at = NULL",
        "UPDATE epochline.part SET rows = 0", "COPY epochline.part TO PROGRAM 'true'",
        "UPDATE epochline.manifest SET rows = 0", "DELETE FROM epochline.manifest", "DELETE FROM epochline.fenced_write",
        "INSERT INTO epochline.staging (attempt_id, sink, table_name) VALUES (1, 'x', 'y')",
        "DELETE FROM epochline.quarantined_record", "SELECT epochline.grant_to_roles()", "SET ROLE epochline_owner",
        "CREATE TABLE epochline.mine (a int)", "CREATE TABLE epochline_staging.mine (a int)", "CREATE SCHEMA mine",
        "SELECT * FROM {staging}", "DELETE FROM {staging}", "TRUNCATE {staging}", "DROP TABLE {staging}",
    ],
)  # fmt: skip
def test_a_writer_fills_staging_and_can_touch_nothing_else_of_it_nor_target_nor_chain_nor_state(
    staging: sql.Identifier, writer: str, statement: str
) -> None:
    """SEC-6: a stolen job's password moves no offset and shows no row."""
    execute(writer, sql.SQL("INSERT INTO {} (value) VALUES ('x')").format(staging))

    denied(writer, sql.SQL(statement).format(staging=staging))


def test_an_owner_runs_the_ledger_and_cannot_change_what_it_is(world: World, owner: str) -> None:
    world.to_committed()

    for statement in (
        "DROP TRIGGER committed_is_written_once ON epochline.committed_range",
        "ALTER TABLE epochline.epoch DISABLE TRIGGER ALL",
        "DROP TABLE epochline.part",
        "UPDATE epochline.alembic_version SET version_num = '9'",
    ):
        denied(owner, statement)
    with pytest.raises(errors.IntegrityError):
        execute(owner, "UPDATE epochline.committed_range SET until_offset = until_offset + 1")


def test_a_reader_sees_every_view_and_nothing_else(world: World, reader: str, as_superuser: AsSuperuser) -> None:
    """SEC-6, U7: of the quarantine only what shows nothing of a record, for that may be somebody's personal data."""
    world.to_committed()
    relations = as_superuser(
        "SELECT c.oid::regclass::text, c.relkind FROM pg_class c"
        " WHERE c.relnamespace = 'epochline'::regnamespace AND c.relkind IN ('r', 'v', 'p') ORDER BY 1"
    )
    views = {name for name, kind in relations if kind == "v"}
    assert {"epochline.epochs", "epochline.heads", "epochline.quarantine", "epochline.actions"} <= views

    for name, kind in [*relations, ("public.orders", "r")]:
        query = f"SELECT count(*) FROM {name}"  # any one column is enough for that
        if kind == "v":
            execute(reader, query)
        else:
            denied(reader, query)
        for change in (f"DELETE FROM {name}", f"TRUNCATE {name}"):
            with pytest.raises(REFUSED):
                execute(reader, change)
    for view in views - {"epochline.quarantine", "epochline.refused_rows"}:
        execute(reader, f"SELECT * FROM {view}")
    execute(reader, "SELECT pipeline, epoch_id, attempt, sink, refused_at FROM epochline.refused_rows")
    for column in ('"row"', "reason"):
        denied(reader, f"SELECT {column} FROM epochline.refused_rows")
    execute(reader, 'SELECT pipeline, epoch_id, topic, partition, "offset", quarantined_at FROM epochline.quarantine')
    for column in ("key", "value", "headers", "reason"):
        denied(reader, f"SELECT {column} FROM epochline.quarantine")
    denied(reader, "CREATE TABLE public.mine (a int)")


def test_a_reader_that_may_inspect_sees_bytes_only_after_it_took_the_role(
    world: World, reader: str, as_superuser: AsSuperuser
) -> None:
    """SEC-6: the pages' login reads bytes in the transactions for operators, and in no other."""
    look = "SELECT key, value, headers, reason FROM epochline.quarantine"
    denied(reader, "SET ROLE epochline_inspector")

    as_superuser(f"GRANT epochline_inspector TO {user(reader)} WITH INHERIT FALSE")

    denied(reader, look)
    assert execute(reader, "SET ROLE epochline_inspector", look) == []
    for change in ("DELETE FROM epochline.quarantined_record", "SELECT * FROM epochline.quarantined_record"):
        denied(reader, "SET ROLE epochline_inspector", change)


def test_a_migration_lets_the_pages_login_read_and_inspect_or_names_the_statements_and_no_other_login(
    stack: Stack, postgres_dsn: str, login: Login
) -> None:
    """SEC-6: an installation that is older than the inspector's role gets it with the next `epochline migrate`."""
    pages, older, other = login(), login("epochline_reader"), login("epochline_reader")
    stranger = login()

    reads, inspects = 'GRANT "epochline_reader" TO "{}";', 'GRANT "epochline_inspector" TO "{}" WITH INHERIT FALSE;'
    left = arrange_roles(postgres_dsn, viewer=user(pages))
    assert left == [reads.format(user(pages)), inspects.format(user(pages))]
    assert arrange_roles(postgres_dsn, viewer=user(older)) == [inspects.format(user(older))]
    assert arrange_roles(superuser(stack, postgres_dsn), viewer=user(pages)) == []

    assert arrange_roles(postgres_dsn, viewer=user(pages)) == []
    assert execute(pages, "SET ROLE epochline_inspector", "SELECT value FROM epochline.quarantine") == []
    denied(pages, "SELECT value FROM epochline.quarantine")
    denied(other, "SET ROLE epochline_inspector")
    denied(stranger, "SELECT count(*) FROM epochline.epochs")
    assert arrange_roles(postgres_dsn, viewer="no such login") == []


@pytest.mark.parametrize("name", ["epochline_job", "epochline_viewer"])
def test_the_stacks_own_logins_of_few_rights_make_not_even_temporary_tables(stack: Stack, name: str) -> None:
    denied(stack.postgres.dsn(login=name), "CREATE TEMPORARY TABLE mine (a int)")
    with pytest.raises(psycopg2.OperationalError, match="permission denied for database"):
        execute(at(stack.postgres.dsn(login=name), "airflow"), "SELECT 1")


def test_a_login_that_may_make_no_roles_migrates_and_learns_what_a_dba_has_to_run(
    stack: Stack, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = login(attributes="NOCREATEROLE")
    database = f"bare_{secrets.token_hex(4)}"
    dsn = migrated(stack, plain, database, database, monkeypatch)

    left = arrange_roles(dsn)

    assert left == grants(database, database, user(plain))
    execute(superuser(stack, dsn), *left)
    assert arrange_roles(dsn) == []
    for role, table, right in (("writer", "part", "INSERT"), ("reader", "epochs", "SELECT")):
        asked = f"SELECT has_table_privilege('{database}_{role}', 'epochline.{table}', '{right}')"
        assert execute(dsn, asked) == [(True,)]
    execute(stack.postgres.superuser_dsn, f"DROP DATABASE {database}")
    drop_roles(stack, database)


def test_a_login_that_may_make_roles_makes_them_and_a_second_database_finds_them(
    stack: Stack, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roles belong to the server: two databases that migrate at the same moment make them once."""
    maker = login(attributes="CREATEROLE")
    prefix = f"two_{secrets.token_hex(4)}"
    databases = [f"{prefix}_{number}" for number in (1, 2)]
    urls = [migrated(stack, maker, database, prefix, monkeypatch) for database in databases]
    barrier = threading.Barrier(2)

    def arrange(url: str) -> Sequence[str]:
        barrier.wait()
        return arrange_roles(url)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(arrange, urls)) == [[], []]
    roles = f"SELECT count(*) FROM pg_roles WHERE rolname LIKE '{prefix}%' AND NOT rolcanlogin"
    assert execute(stack.postgres.superuser_dsn, roles) == [(4,)]
    for database in databases:
        execute(stack.postgres.superuser_dsn, f"DROP DATABASE {database}")
    drop_roles(stack, prefix)


def migrated(stack: Stack, login: str, database: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of the login's, with roles of this test's own from now on: other tests use the server's roles."""
    execute(stack.postgres.superuser_dsn, f"CREATE DATABASE {database} OWNER {user(login)}")
    dsn = at(login, database)
    upgrade(dsn)
    ((body,),) = execute(superuser(stack, dsn), "SELECT pg_get_functiondef('epochline.grant_to_roles()'::regprocedure)")
    for role in ROLES:
        body = body.replace(role, role.replace("epochline", prefix))
    execute(superuser(stack, dsn), body)
    own = {kind: f"{prefix}_{kind}" for kind in KINDS}
    monkeypatch.setattr("epochline.postgres.ledger.roles.ROLES", own)
    return dsn


def drop_roles(stack: Stack, prefix: str) -> None:
    execute(stack.postgres.superuser_dsn, *(f"DROP ROLE {role.replace('epochline', prefix)}" for role in ROLES))


def test_a_repeat_grants_what_was_taken_and_what_is_new(
    postgres_dsn: str, reader: str, as_superuser: AsSuperuser
) -> None:
    execute(postgres_dsn, "CREATE VIEW epochline.later AS SELECT 1 AS one")
    as_superuser("REVOKE SELECT ON epochline.epochs FROM epochline_reader")
    denied(reader, "SELECT * FROM epochline.epochs")

    assert arrange_roles(postgres_dsn) == []

    assert execute(reader, "SELECT count(*) FROM epochline.epochs") == [(0,)]
    assert execute(reader, "SELECT * FROM epochline.later") == [(1,)]


def test_a_writer_that_lacks_something_is_refused_before_spark_starts_with_the_statement_that_helps(
    ticket: StagingTicket, owner: str, writer: str, login: Login, new_database: Callable[[], str]
) -> None:
    """INV-4: if its sessions could not be ended, a zombie could not be fenced, and nobody would know before."""
    check_writer(owner, writer, ticket)
    stranger, apart = login(), login("epochline_writer")
    lacks = {
        stranger: f"GRANT epochline_writer TO {user(stranger)};",
        apart: f"GRANT {user(apart)} TO epochline_owner;",
    }
    for other, missing in lacks.items():
        with pytest.raises(ConfigurationError, match=missing):
            check_writer(owner, other, ticket)
    for other in (parse_dsn(new_database())["dbname"], "template1"):
        with pytest.raises(ConfigurationError, match="leads to another database"):
            check_writer(owner, at(writer, other), ticket)


def test_a_login_without_any_role_learns_which_it_lacks(world: World, login: Login) -> None:
    world.ledger = PostgresLedger(login())

    with pytest.raises(LedgerError, match="epochline_owner"):
        world.plan()


def test_a_migration_by_a_login_that_does_not_own_the_ledger_names_what_to_do(world: World, owner: str) -> None:
    with pytest.raises(ConfigurationError, match=r"belongs to another login.*Run `epochline migrate` with"):
        upgrade(owner)


def test_an_attempt_begins_where_no_role_was_ever_made(
    postgres_dsn: str, world: World, as_superuser: AsSuperuser
) -> None:
    """A ledger whose DBA has not come yet works as before, by one login for everything."""
    as_superuser("REVOKE ALL ON SCHEMA epochline_staging FROM epochline_owner, epochline_writer")
    world.ledger, world.writer = PostgresLedger(postgres_dsn), PostgresWriter(postgres_dsn)

    world.to_committed()

    assert len(world.visible()) == 15


@pytest.fixture
def bare_server() -> Iterator[Postgres]:
    """A server that nothing has been made in."""
    one = Stack(Path(tempfile.mkdtemp(prefix="epochline-tests-")))
    choose_ports(one.home)
    with one.home.lock():
        credentials.ensure(one.home)
        one.postgres.start()
        try:
            one.postgres.daemon.wait_ready(one.postgres.health, 60)
            yield one.postgres
        finally:
            one.postgres.stop()
            one.home.wipe()


PIPELINE = """
from epochline import KafkaSource, Pipeline, PostgresTable, Text, epoch_dag

columns = {"value": "text"}
sinks = [PostgresTable(table="orders", columns=columns), PostgresTable(table="other.orders", columns=columns)]
dag = epoch_dag(
    Pipeline(name="orders", source=KafkaSource(topics="orders"), parse=Text(), sinks=sinks[:SINKS], bad_records="quarantine")
)
"""
MADE = "SELECT rolname FROM pg_roles UNION ALL SELECT nspname FROM pg_namespace UNION ALL SELECT relname FROM pg_class ORDER BY 1"


@pytest.fixture
def migrate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """Runs the command for a pipeline with so many sinks; gives its exit code, and the statements that it prints."""
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))
    call = caller(monkeypatch, capsys)

    def run_it(dsn: str, sinks: int = 1, pages: str | None = None) -> tuple[int, list[str]]:
        (tmp_path / "orders.py").write_text(PIPELINE.replace("SINKS", str(sinks)))
        connect_to(monkeypatch, postgres=dsn)
        if pages is not None:
            monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_READER", pages)
        code, out, _err = call("migrate")
        return code, [line.strip() for line in out.splitlines() if line.startswith("  ")]

    return run_it


def test_a_login_that_owns_nothing_learns_every_statement_for_a_dba_and_then_migrates_and_commits(
    bare_server: Postgres, migrate: Callable[..., Any]
) -> None:
    """SEC-6: the names of the login and the database need quotes."""
    admin = bare_server.superuser_dsn
    logins = ("""CREATE ROLE "Team's" LOGIN PASSWORD 'x'""", "CREATE ROLE pages LOGIN PASSWORD 'x'")
    execute(admin, *logins, 'CREATE DATABASE "our shop"')
    dsn, pages = (f"postgresql://{one}:x@127.0.0.1:{bare_server.port}/our%20shop" for one in ("Team%27s", "pages"))
    as_dba = superuser_of(admin, dsn)
    rights = ('REVOKE ALL ON DATABASE "our shop" FROM PUBLIC', """GRANT CONNECT ON DATABASE "our shop" TO "Team's" """)
    execute(as_dba, *rights)
    before = execute(as_dba, MADE)

    code, statements = migrate(dsn, sinks=2, pages=pages)

    assert (code, execute(as_dba, MADE)) == (ConfigurationError.exit_code, before)
    assert statements == [
        *grants("our shop", "epochline", "Team's"),
        'GRANT "epochline_reader" TO "pages";',
        'GRANT "epochline_inspector" TO "pages" WITH INHERIT FALSE;',
        """CREATE SCHEMA "epochline" AUTHORIZATION "Team's";""",
        """CREATE SCHEMA "epochline_staging" AUTHORIZATION "Team's";""",
        """CREATE SCHEMA "other" AUTHORIZATION "Team's";""",
        'GRANT USAGE ON SCHEMA "other" TO "epochline_owner";',
        """GRANT USAGE, CREATE ON SCHEMA "public" TO "Team's";""",
    ]
    execute(as_dba, *statements)
    assert [migrate(dsn, sinks=2), migrate(dsn, sinks=2)] == [(0, [])] * 2
    assert execute(pages, "SELECT count(*) FROM epochline.epochs") == [(0,)]
    world = postgres_world(dsn)
    world.to_committed()
    assert len(world.visible()) == 15


@pytest.mark.parametrize(
    ("beforehand", "statements"),
    [
        (('CREATE SCHEMA {name} AUTHORIZATION "{login}"',), []),
        (('GRANT epochline_owner TO "{login}"', "CREATE SCHEMA {name} AUTHORIZATION epochline_owner"), []),
        (("CREATE SCHEMA {name} AUTHORIZATION epochline_owner",), ['GRANT "epochline_owner" TO "{login}";']),
        (
            ('GRANT epochline_owner TO "{login}"', "CREATE SCHEMA {name}", 'GRANT ALL ON SCHEMA {name} TO "{login}"'),
            ['ALTER SCHEMA "epochline" OWNER TO "{login}";', 'ALTER SCHEMA "epochline_staging" OWNER TO "{login}";'],
        ),
    ],
    ids=["of-the-login", "of-the-owner-role", "membership-is-missing", "of-a-dba"],
)
def test_schemas_that_a_dba_made_beforehand_are_accepted_if_the_login_may_grant_on_them(
    stack: Stack, login: Login, migrate: Callable[..., Any], beforehand: Sequence[str], statements: Sequence[str]
) -> None:
    """A login that may not create schemas, and may create tables in `public`, makes the ledger in given ones."""
    team, database = login(), f"given_{secrets.token_hex(4)}"
    execute(stack.postgres.superuser_dsn, f"CREATE DATABASE {database}")
    dsn = at(team, database)
    as_dba = superuser(stack, dsn)
    execute(as_dba, f"GRANT CREATE ON SCHEMA public TO {user(team)}")
    for name, statement in itertools.product(("epochline", "epochline_staging"), beforehand):
        execute(as_dba, statement.format(name=name, login=user(team)))

    code, left = migrate(dsn)

    expected = [statement.format(login=user(team)) for statement in statements]
    assert (code, [line for line in left if line in expected]) == (1 if expected else 0, expected)
    execute(as_dba, *left)
    assert migrate(dsn) == (0, [])
    world = postgres_world(dsn)
    world.to_committed()
    assert len(world.visible()) == 15
    execute(stack.postgres.superuser_dsn, f"DROP DATABASE {database}")


def test_the_script_of_the_containers_leaves_nothing_to_a_dba(bare_server: Postgres) -> None:
    """SEC-6: run as the image's entry point does; then the ledger is migrated by its owner."""
    names = ("EPOCHLINE_POSTGRES", "EPOCHLINE_JOB", "EPOCHLINE_VIEWER", "AIRFLOW_POSTGRES")
    passwords = {f"{name}_PASSWORD": password for name, password in zip(names, "abcd", strict=True)}
    script = Path(__file__).parents[2] / "include" / "docker" / "databases.sql"
    done = subprocess.run(
        [binaries() / "psql", "--no-psqlrc", "--file", script, bare_server.superuser_dsn],
        env=passwords, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    server = f"127.0.0.1:{bare_server.port}/epochline"

    upgrade(f"postgresql://epochline:a@{server}")

    assert arrange_roles(f"postgresql://epochline:a@{server}") == []
    assert execute(f"postgresql://epochline_viewer:c@{server}", "SELECT count(*) FROM epochline.epochs") == [(0,)]
    execute(f"postgresql://epochline_job:b@{server}", "SELECT 1 FROM epochline.attempt FOR KEY SHARE")
    denied(f"postgresql://epochline_job:b@{server}", "CREATE TEMPORARY TABLE mine (a int)")
