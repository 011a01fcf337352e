"""Check, before Spark starts, that the login of the Spark job has the rights that it needs."""

from contextlib import closing

import psycopg2

from epochline.config.logins import log_in
from epochline.declare.names import OWNER, WRITER
from epochline.errors import ConfigurationError, RightsMissingError
from epochline.postgres.queries.driver_errors import explained
from epochline.postgres.queries.statements import Connection
from epochline.postgres.queries.statements import run as execute
from epochline.protocol.staging import StagingTicket


def check_writer(ledger_dsn: str, writer_dsn: str, ticket: StagingTicket) -> None:
    """Refuse a writer's login that cannot stage the attempt, or whose sessions a fence cannot end (SEC-6, INV-4).

    Args:
        ledger_dsn: libpq URL of the login that begins, seals and commits.
        writer_dsn: libpq URL of the Spark job.
        ticket: of the attempt that has just begun.

    Raises:
        ConfigurationError: the URLs lead to different databases, or a grant is missing; the message names it.
        LedgerUnavailableError: one of the two databases cannot be reached.
    """
    try:
        staging = f'epochline_staging."{ticket.tables[0].table}"'
        with _session(writer_dsn) as writer:
            _refuse_a_stranger(writer, str(ticket))
            of_writer = execute(writer, "writer_rights", attempt_id=ticket.attempt_id, staging=staging).one()
        with _session(ledger_dsn) as ledger:
            of_ledger = execute(ledger, "ledger_rights", attempt_id=ticket.attempt_id, login=of_writer.login).one()
    except psycopg2.Error as error:
        raise explained(error) from None
    if of_writer.token != of_ledger.token:
        raise ConfigurationError(_elsewhere(str(ticket)))
    if not of_writer.may_stage:
        grant = f"GRANT {WRITER} TO {of_writer.login};"
        raise RightsMissingError(
            f"{ticket}: login {of_writer.login} of the writer's connection may not fill its staging tables. Run"
            f" `epochline migrate`; then: {grant} Nothing was written.",
            [grant],
        )
    _refuse_unfenced(str(ticket), of_writer.login, of_ledger.may_end_sessions)


def check_login(ledger_dsn: str, writer_dsn: str, subject: str) -> None:
    """Make the checks of `check_writer` that need no attempt. ``subject`` begins the message of its errors."""
    try:
        with _session(writer_dsn) as writer:
            login = _refuse_a_stranger(writer, subject)
        with _session(ledger_dsn) as ledger:
            of_ledger = execute(ledger, "ledger_rights", attempt_id=None, login=login).one()
    except psycopg2.Error as error:
        raise explained(error) from None
    _refuse_unfenced(subject, login, of_ledger.may_end_sessions)


def _refuse_unfenced(subject: str, login: str, may_end_sessions: bool) -> None:
    if not may_end_sessions:
        grant = f"GRANT {login} TO {OWNER};"
        raise RightsMissingError(
            f"{subject}: the ledger's login may not end sessions of the writer's login {login}, so a zombie could not"
            f" be fenced. A DBA has to run: {grant} Nothing was written.",
            [grant],
        )


def _session(dsn: str) -> closing[Connection]:
    return closing(log_in(dsn, application_name="epochline", connect_timeout=10))


def _refuse_a_stranger(writer: Connection, subject: str) -> str:
    """The writer's login, if it may read the ledger."""
    rights = execute(writer, "writer_is_known").one()
    if not rights.ledger:
        raise ConfigurationError(_elsewhere(subject))
    if not rights.may_read:
        grant = f"GRANT {WRITER} TO {rights.login};"
        raise RightsMissingError(
            f"{subject}: login {rights.login} of the writer's connection may not read the ledger. Run `epochline"
            f" migrate`; then: {grant} Nothing was written.",
            [grant],
        )
    login: str = rights.login
    return login


def _elsewhere(subject: str) -> str:
    return (
        f"{subject}: the writer's connection leads to another database than the ledger's, where this attempt is not"
        " known. Correct the connection. Nothing was written."
    )
