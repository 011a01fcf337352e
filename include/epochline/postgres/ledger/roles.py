"""Roles of least privilege and the schemas: make what this login may, and compose the statements for the rest."""

from collections.abc import Iterable, Iterator

from psycopg2 import sql
from psycopg2.errors import DuplicateObject, InsufficientPrivilege, UndefinedObject, UniqueViolation

from epochline.declare.names import INSPECTOR, OWNER, READER, WRITER, split_table
from epochline.errors import RightsMissingError
from epochline.postgres.queries.statements import Connection, as_text, change, compose
from epochline.postgres.queries.statements import run as execute

LEDGER_SCHEMAS = ("epochline", "epochline_staging")
ROLES = {"owner": OWNER, "writer": WRITER, "reader": READER, "inspector": INSPECTOR}


def arrange(connection: Connection, viewer: str | None = None) -> list[str]:
    """Create the roles and their memberships, as far as this login may. A repeat changes nothing.

    Args:
        connection: of the transaction that makes them.
        viewer: login of the pages in Airflow: it may then read the views, and take the role that sees quarantined
            bytes.

    Returns:
        SQL statements for a DBA to run in this order; usually none.
    """
    left: list[sql.Composable] = []
    for statement, may_run in _missing(connection, viewer):
        left += _tried(connection, statement) if may_run else [statement]
    return _texts(connection, left)


def lacking(connection: Connection) -> list[str]:
    """The statements that `arrange` would run or leave to a DBA. Changes nothing."""
    return _texts(connection, [statement for statement, _ in _missing(connection, None)])


def _missing(connection: Connection, viewer: str | None) -> Iterator[tuple[sql.Composable, bool]]:
    """The statements that are missing, and whether a try makes sense. Each kind is asked for after the one before."""
    roles = list(ROLES.values())
    for (role,) in execute(connection, "missing_roles", roles=roles):
        yield compose("CREATE ROLE {role} NOLOGIN", role=role), True
    for role, member in execute(connection, "missing_memberships", **ROLES):
        yield compose("GRANT {role} TO {member}", role=role, member=member), True
    for role, allowed, database, may_grant in execute(
        connection, "missing_database_rights", roles=roles, owner=ROLES["owner"]
    ):
        grant = compose("GRANT {allowed} ON DATABASE {database} TO {role}",
                        allowed=sql.SQL(allowed), database=database, role=role)  # fmt: skip
        yield grant, may_grant
    for role, option in execute(
        connection, "missing_viewer_roles", login=viewer, reader=ROLES["reader"], inspector=ROLES["inspector"]
    ):
        yield compose("GRANT {role} TO {login}" + option, role=role, login=viewer), True


def refuse_without_schemas(connection: Connection, tables: Iterable[str], left: Iterable[str], *, ledger: bool) -> None:
    """Refuse a login that may not make the ledger or a missing table.

    Args:
        connection: of the transaction that would make them.
        tables: names of tables that are to be made if they are missing.
        left: statements for a DBA that are known already.
        ledger: whether there is a ledger.

    Raises:
        RightsMissingError: with every statement for a DBA.
    """
    wanted = [split_table(table) for table in tables]
    if not ledger:
        wanted += [(schema, "") for schema in LEDGER_SCHEMAS]
    rows = execute(
        connection, "schemas_without_rights", schemas=[schema for schema, _ in wanted],
        tables=[table for _, table in wanted], of_ledger=list(LEDGER_SCHEMAS),
    )  # fmt: skip
    if not rows:
        return
    statements = [statement for row in rows for statement in _for_schema(row.schema, row.owner, row.login)]
    raise RightsMissingError(
        f"login {rows[0].login} may not make tables in {', '.join(row.schema for row in rows)} of database"
        f" {connection.info.dbname}. Nothing was changed.",
        dict.fromkeys([*left, *_texts(connection, statements)]),
    )


def _for_schema(schema: str, owner: str | None, login: str) -> Iterator[sql.Composable]:
    """What a DBA runs so that the login can make tables in a schema. Without an owner there is no such schema."""
    if owner is None:
        yield compose("CREATE SCHEMA {schema} AUTHORIZATION {login}", schema=schema, login=login)
        if schema not in LEDGER_SCHEMAS:
            yield compose("GRANT USAGE ON SCHEMA {schema} TO {owner}", schema=schema, owner=OWNER)
    elif schema not in LEDGER_SCHEMAS:
        yield compose("GRANT USAGE, CREATE ON SCHEMA {schema} TO {login}", schema=schema, login=login)
    elif owner == OWNER:
        yield compose("GRANT {owner} TO {login}", owner=OWNER, login=login)
    else:
        yield compose("ALTER SCHEMA {schema} OWNER TO {login}", schema=schema, login=login)


def _tried(connection: Connection, statement: sql.Composable) -> list[sql.Composable]:
    """Run a statement of this module; it is returned if this login may not."""
    change(connection, "SAVEPOINT before_role")
    try:
        change(connection, statement)
    except (DuplicateObject, UniqueViolation):
        # The migration of another database created it at the same moment.
        change(connection, "ROLLBACK TO SAVEPOINT before_role")
    except (InsufficientPrivilege, UndefinedObject):
        change(connection, "ROLLBACK TO SAVEPOINT before_role")
        return [statement]
    return []


def _texts(connection: Connection, statements: Iterable[sql.Composable]) -> list[str]:
    return [f"{as_text(connection, statement)};" for statement in statements]
