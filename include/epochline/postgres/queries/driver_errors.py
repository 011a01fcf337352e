"""Translate errors of PostgreSQL's driver. No SQLAlchemy is imported: commands that only read do not need it."""

import psycopg2
from psycopg2 import errorcodes

from epochline.declare.version import VERSION
from epochline.errors import (
    EpochlineError,
    LedgerError,
    LedgerUnavailableError,
    LockTimeoutError,
    PlanChangedError,
    StatementTimeoutError,
    VersionError,
)

_DATA_EXCEPTION = errorcodes.CLASS_DATA_EXCEPTION
"""The class of errors whose message may contain the value."""


def explained(error: BaseException | None) -> EpochlineError:
    """Translate the driver's error into one of Epochline's. The message contains no values of rows."""
    if not isinstance(error, psycopg2.Error):
        return LedgerError(str(error))
    code = error.pgcode or ""
    message = (error.diag.message_primary or str(error)).strip().splitlines()[0] if (error.diag or error.args) else code
    if code.startswith(_DATA_EXCEPTION):
        message = f"{errorcodes.lookup(code).lower().replace('_', ' ')} (the value is not shown)"
    if code in (
        errorcodes.LOCK_NOT_AVAILABLE,
        errorcodes.DEADLOCK_DETECTED,
        errorcodes.SERIALIZATION_FAILURE,
    ):
        return LockTimeoutError(
            f"PostgreSQL: {message}. Another transaction holds what this one needs; nothing was changed."
        )
    if code == errorcodes.UNIQUE_VIOLATION and error.diag.constraint_name == "one_unfinished_epoch":
        return PlanChangedError("another run wrote an unfinished epoch of the pipeline at the same moment")
    if code in (errorcodes.UNDEFINED_TABLE, errorcodes.INVALID_SCHEMA_NAME) and "epochline." in message:
        return VersionError(
            f"PostgreSQL: {message}. The ledger is missing, or older than epochline {VERSION}: run `epochline migrate`."
        )
    if code in (errorcodes.UNDEFINED_COLUMN, errorcodes.UNDEFINED_FUNCTION):
        # PostgreSQL does not say in which schema it looked.
        return LedgerError(
            f"PostgreSQL: {message}. If that belongs to the ledger, the ledger is older than epochline"
            f" {VERSION}: run `epochline migrate`."
        )
    if code == errorcodes.READ_ONLY_SQL_TRANSACTION:
        return LedgerError(
            f"PostgreSQL: {message}. Sessions of this login are read-only; nothing was changed. Either"
            " `default_transaction_read_only` is on (for the database or the role, or by the variable PGOPTIONS):"
            " switch it off. Or the server is a standby: name the primary in the connection."
        )
    if code == errorcodes.INSUFFICIENT_PRIVILEGE:
        return LedgerError(
            f"PostgreSQL: {message}. This login may not do that; nothing was changed. The ledger's login must"
            " be a member of epochline_owner: `epochline migrate` grants what is missing and prints what a DBA has to"
            " run."
        )
    if code == errorcodes.QUERY_CANCELED:
        return StatementTimeoutError(f"PostgreSQL: {message}. The transaction was rolled back; nothing was changed.")
    # 53: memory, disk or connections are short; 58: the operating system refused.
    lost = not code or code.startswith(("08", "57P", "53", "58"))
    # The server ended an idle session. Its code belongs to no class of lost sessions.
    stood_still = code == errorcodes.IDLE_IN_TRANSACTION_SESSION_TIMEOUT
    if lost or stood_still or isinstance(error, psycopg2.InterfaceError):
        return LedgerUnavailableError(f"PostgreSQL cannot be reached or broke off: {message}")
    return LedgerError(f"PostgreSQL refused ({code}): {message}")
