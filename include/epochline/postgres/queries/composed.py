"""Run statements with table and column names that ``psycopg2.sql`` composed."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, cast

from psycopg2 import sql
from sqlalchemy import Connection


def compose(text: str, /, **parts: object) -> sql.Composed:
    """A statement or a piece of one, with a part in place of each ``{name}``.

    A part that is a text is a name, which is quoted. Composed pieces stay as they are, and any other value becomes a
    literal.
    """
    return sql.SQL(text).format(**{name: _piece(part) for name, part in parts.items()})


def _piece(part: object) -> sql.Composable:
    if isinstance(part, sql.Composable):
        return part
    return sql.Identifier(part) if isinstance(part, str) else sql.Literal(part)


def joined(pieces: Iterable[sql.Composable], by: str = ", ") -> sql.Composed:
    """Pieces with a separator between them."""
    return sql.SQL(by).join(pieces)


def names(columns: Iterable[str], prefix: str | None = None) -> sql.Composed:
    """A quoted, comma-separated list of columns, each with the prefix if one is given."""
    return joined(sql.Identifier(prefix, c) if prefix else sql.Identifier(c) for c in columns)


def same(columns: Iterable[str], left: str, right: str) -> sql.Composed:
    """``left.a = right.a AND …``."""
    return pairs(((c, c) for c in columns), left, right)


def pairs(columns: Iterable[tuple[str, str]], left: str, right: str) -> sql.Composed:
    """``left.a = right.b AND …``."""
    return joined(
        (compose("{a} = {b}", a=sql.Identifier(left, a), b=sql.Identifier(right, b)) for a, b in columns), " AND "
    )


def assigned(columns: Iterable[str], source: str) -> sql.Composed:
    """``a = source.a, …``."""
    return joined(compose("{c} = {value}", c=c, value=sql.Identifier(source, c)) for c in columns)


def query(connection: Connection, statement: str | sql.Composable, /, **parts: object) -> list[tuple[Any, ...]]:
    """Run a statement in the connection's transaction; returns its rows. A text is composed with the parts."""
    return execute_sql(connection, compose(statement, **parts) if isinstance(statement, str) else statement)[1]


def change(connection: Connection, statement: str | sql.Composable, /, **parts: object) -> int:
    """Run a statement in the connection's transaction; returns the number of rows that it wrote."""
    return execute_sql(connection, compose(statement, **parts) if isinstance(statement, str) else statement)[0]


def as_text(connection: Connection, statement: sql.Composable) -> str:
    """A composed statement as text, for a person to run."""
    return statement.as_string(driver(connection))


def execute_sql(
    connection: Connection, statement: sql.Composable, values: Sequence[Any] = ()
) -> tuple[int, list[tuple[Any, ...]]]:
    """Run a composed statement in the connection's transaction.

    Returns:
        The number of rows that the statement wrote or returned, and the returned rows.
    """
    with closing(driver(connection).cursor()) as cursor:
        # Without values the driver must not look for placeholders, because a quoted name may contain a %.
        cursor.execute(statement, tuple(values) or None)
        return cursor.rowcount, list(cursor.fetchall()) if cursor.description else []


def driver(connection: Connection) -> Any:
    """The connection of psycopg2, which SQLAlchemy types for statements that are text only."""
    raw = connection.connection.dbapi_connection
    if raw is None:
        raise RuntimeError("the connection is closed")
    return cast("Any", raw)
