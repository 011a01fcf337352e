"""Check, before Spark starts, that the login of the Spark job has the rights that it needs."""

from contextlib import closing

import psycopg2

from epochline.declare.names import OWNER, WRITER
from epochline.errors import ConfigurationError
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
            _refuse_a_stranger(writer, ticket)
            of_writer = execute(writer, "writer_rights", attempt_id=ticket.attempt_id, staging=staging).one()
        with _session(ledger_dsn) as ledger:
            of_ledger = execute(ledger, "ledger_rights", attempt_id=ticket.attempt_id, login=of_writer.login).one()
    except psycopg2.Error as error:
        raise explained(error) from None
    if of_writer.token != of_ledger.token:
        raise ConfigurationError(_elsewhere(ticket))
    if not of_writer.may_stage:
        raise ConfigurationError(
            f"{ticket}: login {of_writer.login} of the writer's connection may not fill its staging tables. Run"
            f" `epochline migrate`; then: GRANT {WRITER} TO {of_writer.login}; Nothing was written."
        )
    if not of_ledger.may_end_sessions:
        raise ConfigurationError(
            f"{ticket}: the ledger's login may not end sessions of the writer's login {of_writer.login}, so a zombie"
            f" could not be fenced. A DBA has to run: GRANT {of_writer.login} TO {OWNER}; Nothing was written."
        )


def _session(dsn: str) -> closing[Connection]:
    return closing(psycopg2.connect(dsn, application_name="epochline", connect_timeout=10))


def _refuse_a_stranger(writer: Connection, ticket: StagingTicket) -> None:
    rights = execute(writer, "writer_is_known").one()
    if not rights.ledger:
        raise ConfigurationError(_elsewhere(ticket))
    if not rights.may_read:
        raise ConfigurationError(
            f"{ticket}: login {rights.login} of the writer's connection may not read the ledger. Run `epochline"
            f" migrate`; then: GRANT {WRITER} TO {rights.login}; Nothing was written."
        )


def _elsewhere(ticket: StagingTicket) -> str:
    return (
        f"{ticket}: the writer's connection leads to another database than the ledger's, where this attempt is not"
        " known. Correct the connection. Nothing was written."
    )
