"""What errors say, chain and all, as a task's log shows it: no password, no value of a row (SEC-4, SEC-5)."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from epochline import PostgresTable
from epochline.cli import database
from epochline.errors import EpochlineError, LedgerUnavailableError, SealRefusedError
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.job_session import connect
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.postgres.ledger.writer import check_writer
from epochline.protocol.staging import StagedTable, StagingTicket
from epochline.spark.transaction import PartTransaction, RowRefusedError
from tests.contract.worlds import WRITE_ID
from tests.databases import query
from tests.integration.bench import IN_PUBLIC, KV, LINEAGE, Bench

CANARY = "canary-4111-1111"


@contextmanager
def refused_in_silence(error: type[Exception], match: str | None = None) -> Iterator[None]:
    """The block raises the error, and no link of its chain shows the canary."""
    with pytest.raises(error, match=match) as raised:
        yield
    assert CANARY not in "".join(traceback.format_exception(raised.value))


def entered(block: AbstractContextManager[Any]) -> None:
    with block:
        pass


Connecting = Callable[[str], object]
CONNECTING: dict[str, Connecting] = {
    "ledger": lambda dsn: entered(PostgresLedger(dsn).transaction()),
    "command line": lambda dsn: entered(database.session(dsn)),
    "job": lambda dsn: connect(dsn, "test"),
    "job's plan": lambda dsn: read_plan(dsn, "p", 1, 1),
    "writer's check": lambda dsn: check_writer(dsn, dsn, ticket("t")),
}


def ticket(table: str) -> StagingTicket:
    staged = StagedTable(sink="t", table=table, columns={"k": "text", "n": "integer"})
    session = "epochline:1:x"
    return StagingTicket(pipeline="p", epoch_id=1, attempt=1, attempt_id=1, application_name=session, tables=(staged,))


@pytest.mark.parametrize("what", CONNECTING.values(), ids=CONNECTING.keys())
@pytest.mark.parametrize(
    "wrong", [{}, {"port": 1}, {"host": "nowhere.invalid"}, {"database": "nothing"}],
    ids=["password", "port", "host", "database"],
)  # fmt: skip
def test_a_connection_that_fails_shows_no_password(postgres_dsn: str, what: Connecting, wrong: dict[str, Any]) -> None:
    """SEC-4: a wrong password is a secret too, most often an old one or one of another system."""
    dsn = make_url(postgres_dsn).set(password=CANARY, **wrong).render_as_string(hide_password=False)

    with refused_in_silence(LedgerUnavailableError):
        what(dsn)


RULES = {
    "check": "CREATE TABLE t (k text CHECK (length(k) < 3), v integer{lineage})",
    "unique": "CREATE TABLE t (k text, v integer{lineage}, UNIQUE (k))",
    "foreign key": "CREATE TABLE o (k text PRIMARY KEY); CREATE TABLE t (k text REFERENCES o, v integer{lineage})",
    "bad cast in a trigger": "CREATE TABLE t (k text, v integer{lineage}); CREATE FUNCTION f() RETURNS trigger"
    " LANGUAGE plpgsql AS $$ BEGIN NEW.v = NEW.k::integer; RETURN NEW; END $$;"
    " CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_target_that_refuses_rows_is_named_and_the_rows_are_not_shown(postgres_dsn: str, rule: str) -> None:
    """SEC-5: PostgreSQL's details say `Failing row contains (…)`; a task's log shows every link of the chain."""
    query(postgres_dsn, rule.replace("{lineage}", LINEAGE), options=IN_PUBLIC)
    bench = Bench(postgres_dsn, PostgresTable(table="t"), KV, create=False)

    with refused_in_silence(SealRefusedError, "refused by a target"):
        bench.sealed({"k": CANARY, "v": 1}, {"k": CANARY, "v": 2})


def test_a_statement_that_fails_on_a_value_does_not_show_it(postgres_dsn: str) -> None:
    ledger = PostgresLedger(postgres_dsn)

    with refused_in_silence(EpochlineError, "invalid text representation"), ledger.transaction() as tx:
        tx.epochs._connection.cursor().execute("SELECT %s::integer", (CANARY,))


def test_a_value_that_copy_refuses_is_not_shown(postgres_dsn: str) -> None:
    query(postgres_dsn, "CREATE TABLE epochline_staging.s (k text, n integer)")
    here = ticket("s")
    part = PartTransaction(here, postgres_dsn, WRITE_ID, 0)

    with refused_in_silence(RowRefusedError, "column n"):
        part.copy(here.tables[0], "FORMAT csv", f"{CANARY},{CANARY}\n".encode())
    part.close()


def test_a_session_that_breaks_off_in_the_middle_of_a_row_does_not_show_it(postgres_dsn: str) -> None:
    """The server says at which line of a COPY it was, and what was in it."""
    query(
        postgres_dsn,
        "CREATE TABLE epochline_staging.s (k text, n integer);"
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM set_config('statement_timeout', '0', true); RAISE query_canceled USING MESSAGE = 'ended'; END $$;"
        "CREATE TRIGGER slow BEFORE INSERT ON epochline_staging.s FOR EACH ROW EXECUTE FUNCTION public.slow();"
        "INSERT INTO epochline.pipeline (pipeline) VALUES ('p');"
        "INSERT INTO epochline.declaration (hash, pipeline, body) VALUES ('h', 'p', '{}');"
        "INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, dag_id, run_id, host, declaration_hash,"
        " lease_until) VALUES ('p', 1, 1, 'PLANNED', 'd', 'r', 'h', 'h', now());"
        "INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host)"
        " VALUES ('p', 1, 1, 'd', 'r', 'h')",
    )
    here = ticket("s")
    part = PartTransaction(here, postgres_dsn, WRITE_ID, 0)

    with refused_in_silence(LedgerUnavailableError, "ended"):
        part.copy(here.tables[0], "FORMAT csv", f"{CANARY},1\n".encode())
