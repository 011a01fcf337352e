"""Run statements in a transaction: named ones, and those that ``psycopg2.sql`` composes with identifiers."""

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from psycopg2 import sql
from psycopg2.extensions import connection

from epochline.declare.names import OWNER, split_table
from epochline.postgres.queries.named import statement

Connection = connection
"""A session of psycopg2."""

Row = Any
"""A named tuple of a statement's columns."""


class Rows(list[Row]):
    """The rows that a statement returned, none if it returns none; ``rowcount`` counts what it wrote or returned."""

    def __init__(self, rowcount: int, rows: Iterable[Row]) -> None:
        super().__init__(rows)
        self.rowcount = rowcount

    def one(self) -> Row:
        """The only row."""
        (row,) = self
        return row

    def one_or_none(self) -> Row | None:
        """The only row, or None without one."""
        return self.one() if self else None

    def scalars(self) -> list[Any]:
        """The first column."""
        return [row[0] for row in self]

    def scalar_one(self) -> Any:
        """The first column of the only row."""
        return self.one()[0]

    def scalar_one_or_none(self) -> Any:
        """The first column of the only row; None without a row."""
        return self.scalar_one() if self else None

    def mappings(self) -> list[dict[str, Any]]:
        """Each row by the names of its columns."""
        return [row._asdict() for row in self]


def run(connection: Connection, name: str, /, **values: Any) -> Rows:
    """Run a named statement with bound values. It ignores values that it has not."""
    with connection.cursor() as cursor:
        cursor.execute(statement(name), values)
        if cursor.description is None:
            return Rows(cursor.rowcount, ())
        return Rows(cursor.rowcount, map(_row_type(*(column.name for column in cursor.description))._make, cursor))


@cache
def _row_type(*columns: str) -> Any:
    # A column without a name is asked for by its place.
    return namedtuple("Row", columns, rename=True)


class InTransaction:
    """What every adapter of the ledger is: named statements in the transaction of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _run(self, name: str, /, **values: Any) -> Rows:
        return run(self._connection, name, **values)


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
    return joined(sql.Identifier(prefix, column) if prefix else sql.Identifier(column) for column in columns)


def same(columns: Iterable[str], left: str, right: str) -> sql.Composed:
    """``left.a = right.a AND …``."""
    return pairs(((column, column) for column in columns), left, right)


def pairs(columns: Iterable[tuple[str, str]], left: str, right: str) -> sql.Composed:
    """``left.a = right.b AND …``."""
    return joined(
        (compose("{a} = {b}", a=sql.Identifier(left, a), b=sql.Identifier(right, b)) for a, b in columns), " AND "
    )


def assigned(columns: Iterable[str], source: str) -> sql.Composed:
    """``a = source.a, …``."""
    return joined(compose("{c} = {value}", c=column, value=sql.Identifier(source, column)) for column in columns)


def defined_columns(
    columns: Mapping[str, str], collations: Mapping[str, sql.Composable] = MappingProxyType({})
) -> sql.Composed:
    """``a type COLLATE …, …`` for a new table, from types and collations by column."""
    kinds = {name: sql.SQL(kind) for name, kind in columns.items()}
    collates = {name: collations.get(name, sql.SQL("")) for name in columns}
    return joined(compose("{c} {kind}{collate}", c=name, kind=kinds[name], collate=collates[name]) for name in columns)


def query(connection: Connection, statement: str | sql.Composable, /, **parts: object) -> list[tuple[Any, ...]]:
    """Run a statement; returns its rows. A text is composed with the parts."""
    return execute_sql(connection, compose(statement, **parts) if isinstance(statement, str) else statement)[1]


def change(connection: Connection, statement: str | sql.Composable, /, **parts: object) -> int:
    """Run a statement; returns the number of rows that it wrote. A text is composed with the parts."""
    return execute_sql(connection, compose(statement, **parts) if isinstance(statement, str) else statement)[0]


def as_text(connection: Connection, statement: sql.Composable) -> str:
    """A composed statement as text, for a person to run."""
    return statement.as_string(connection)


def execute_sql(
    connection: Connection, statement: sql.Composable, values: Sequence[Any] = ()
) -> tuple[int, list[tuple[Any, ...]]]:
    """Run a composed statement in the connection's transaction.

    Returns:
        The number of rows that the statement wrote or returned, and the returned rows.
    """
    with connection.cursor() as cursor:
        # Without values the driver must not look for placeholders, because a quoted name may contain a %.
        cursor.execute(statement, tuple(values) or None)
        # Rows without columns have a description that is empty.
        return cursor.rowcount, [] if cursor.description is None else list(cursor.fetchall())


def where(table: str) -> dict[str, str]:
    """Schema and name of a table, as named statements take them."""
    schema, name = split_table(table)
    return {"schema": schema, "table": name}


def settle_table(connection: Connection, schema: str, table: str) -> None:
    """Finish a new table without a key: its rows can be replicated, and every member of the owner role can drop it.

    It stays with its maker if the role is missing or may not own tables in the schema.
    """
    identify_rows(connection, sql.Identifier(schema, table))
    if run(connection, "owner_may_own", schema=schema).scalar_one():
        change(connection, "ALTER TABLE {schema}.{table} OWNER TO {owner}", schema=schema, table=table, owner=OWNER)


def identify_rows(connection: Connection, table: sql.Identifier) -> None:
    """Give a table without a key a replica identity: a publication of all tables refuses UPDATE and DELETE without."""
    change(connection, "ALTER TABLE {table} REPLICA IDENTITY FULL", table=table)
