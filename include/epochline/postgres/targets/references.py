"""Foreign keys to a target: which tables refer to it, and what a deletion or change of its rows would do to theirs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg2 import errors, sql
from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.application import names
from epochline.postgres.targets.catalog import Target, find_target
from epochline.postgres.targets.foreign_keys import ForeignKey, Place, parents_first

DELETES = {"c": "deletes those", "n": "sets those to NULL", "d": "sets those to their default"}
"""What a foreign key does to the rows that refer to a row that goes (pg_constraint.confdeltype and confupdtype)."""
UPDATES = {action: said for action, said in DELETES.items() if action != "c"}
"""The same for a value that changes. ON UPDATE CASCADE is no harm: what refers follows the value."""


def harm_of_delete(
    connection: Connection,
    target: Target,
    doomed: sql.Composable,
    leaving: sql.Composable,
    emptied: Collection[Place] = (),
) -> str | None:
    """Why rows may not be deleted: a foreign key would delete or change rows that refer to them. None if they may.

    Args:
        connection: in whose transaction the rows are to be deleted.
        target: the table with the rows.
        doomed: a query for the rows that are to be deleted, with all columns.
        leaving: the condition that a row ``r`` of the target itself goes, too, or refers to another row afterwards.
        emptied: the tables of which every row goes in the same transaction.
    """
    for key in target.foreign_keys_to_it:
        if key.on_delete in DELETES and key.child not in emptied:
            stays = sql.SQL("NOT ({})").format(leaving) if key.child == key.parent else sql.SQL("true")
            if said := referring(connection, key, doomed, stays):
                return f"{said}, and its foreign key {key.name} {DELETES[key.on_delete]}"
    return None


def harm_of_update(connection: Connection, target: Target, changed: sql.Composable) -> str | None:
    """Why rows may not change: a foreign key would set what refers to them to NULL or a default. None if they may.

    Args:
        connection: in whose transaction the rows are to be changed.
        target: the table with the rows.
        changed: a query for the rows as they are before the change, with all columns.
    """
    for key in target.foreign_keys_to_it:
        if key.on_update in UPDATES and (said := referring(connection, key, changed, sql.SQL("true"))):
            return f"{said}, and its foreign key {key.name} {UPDATES[key.on_update]} when a value changes"
    return None


def referred_columns(target: Target) -> frozenset[str]:
    """The columns of a target to which foreign keys refer."""
    return frozenset(name for key in target.foreign_keys_to_it for name in key.referenced)


def referring_first(connection: Connection, sinks: Sequence[PostgresTable]) -> list[PostgresTable]:
    """The sinks in an order in which each table comes before the tables that its foreign keys refer to."""
    by_place = {split_table(sink.table): sink for sink in sinks}
    targets = [find_target(connection, sink.table) for sink in sinks]
    order, circle = parents_first([target for target in targets if target is not None])
    return [by_place[place] for place in [*reversed(circle), *reversed(order)]]


def referring(connection: Connection, key: ForeignKey, rows: sql.Composable, stays: sql.Composable) -> str | None:
    """Say that a table has rows that refer to these, or that this login cannot know it; None if it has none."""
    statement = sql.SQL(
        "SELECT 1 FROM {table} r WHERE EXISTS (SELECT FROM ({rows}) x WHERE ({referred}) = ({columns})) AND {stays}"
        " LIMIT 1"
    ).format(
        table=sql.Identifier(*key.child), rows=rows, referred=names(key.referenced, "x"),
        columns=names(key.columns, "r"), stays=stays,
    )  # fmt: skip
    table = ".".join(key.child)
    execute_sql(connection, sql.SQL("SAVEPOINT referring"))
    try:
        # PostgreSQL then raises an error in place of hiding rows.
        execute_sql(connection, sql.SQL("SET LOCAL row_security TO off"))
        found = execute_sql(connection, statement)[1]
    except errors.InsufficientPrivilege:
        return f"{table} may have rows that refer to them, which this login may not read"
    finally:
        execute_sql(connection, sql.SQL("ROLLBACK TO SAVEPOINT referring; RELEASE SAVEPOINT referring"))
    return f"{table} has rows that refer to them" if found else None
