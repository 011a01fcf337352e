"""The triggers of a state table, which keep its number of keys and its digest in the ledger, and what they counted.

A write that no trigger sees leaves a trace in the catalog, or needs triggers that are not as `follow` makes them. In
both cases the whole table is read, so that what is compared with the last epoch is what the table holds (ADR 0043).
"""

from __future__ import annotations

from psycopg2 import sql
from sqlalchemy import Connection, Row

from epochline.declare.names import FOLLOWED, WRITER, split_table
from epochline.declare.state import StateDigest
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.catalog import find_target

_ROWS = {
    "insert": "INSERT ON {} REFERENCING NEW TABLE AS new_rows",
    "update": "UPDATE ON {} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "DELETE ON {} REFERENCING OLD TABLE AS old_rows",
    "truncate": "TRUNCATE ON {}",
}
_FUNCTIONS = {"truncate": "follow_state_truncated"}
_REPLICATED = f"{FOLLOWED}_replicated"


def follow(connection: Connection, table: str) -> None:
    """Create or mend the triggers of a state table, and let Spark jobs read the table. The next check counts its rows.

    The counting triggers also fire in sessions with ``session_replication_role = replica``. A trigger for each row
    fires in those alone, because a subscription fires no statement trigger.
    """
    schema, name = split_table(table)
    where = sql.Identifier(schema, name)
    run(connection, "follow_state_table", schema=schema, table=name)
    for event, of_table in _ROWS.items():
        function = _FUNCTIONS.get(event, "follow_state")
        _trigger(connection, f"{FOLLOWED}_{event}", where, f"{of_table} FOR EACH STATEMENT", function, "ALWAYS")
    each = "INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW"
    _trigger(connection, _REPLICATED, where, each, "follow_state_replicated", "REPLICA")
    if run(connection, "role_exists", role=WRITER).scalar_one():
        for rights in ("USAGE ON SCHEMA {}", "SELECT ON {}"):
            what = sql.Identifier(schema) if "SCHEMA" in rights else where
            execute_sql(connection, sql.SQL(f"GRANT {rights} TO {{}}").format(what, sql.Identifier(WRITER)))


def _trigger(connection: Connection, name: str, table: sql.Identifier, event: str, function: str, fires: str) -> None:
    execute_sql(
        connection,
        sql.SQL(f"CREATE OR REPLACE TRIGGER {{}} AFTER {event} EXECUTE FUNCTION epochline.{function}()").format(
            sql.Identifier(name), table
        ),
    )
    execute_sql(
        connection, sql.SQL(f"ALTER TABLE {{}} ENABLE {fires} TRIGGER {{}}").format(table, sql.Identifier(name))
    )


def mend(connection: Connection, table: str) -> None:
    """Make the triggers of a state table as `follow` makes them, where something else has changed them.

    A table that Epochline did not create, or that belongs to another login, is left as it is.
    """
    seen = _trace(connection, table)
    if seen is not None and seen.owned and not seen.watched and is_followed(connection, table):
        follow(connection, table)


def is_followed(connection: Connection, table: str) -> bool:
    """Whether Epochline created a state table of this name. Locks its counts."""
    schema, name = split_table(table)
    return run(connection, "lock_state", schema=schema, table=name).one_or_none() is not None


def state_now(connection: Connection, table: str) -> StateDigest | None:
    """The number of keys and the digest of a state table, with a lock that other writers wait for.

    The triggers' counts are used if they have seen every write, else the whole table is read and counted.

    Returns:
        None if Epochline did not create the table, or if one of its triggers is missing or disabled.
    """
    schema, name = split_table(table)
    counted = run(connection, "lock_state", schema=schema, table=name).one_or_none()
    # A statement after the lock: in the same one, the catalog would be read as it was before the wait for the lock.
    seen = _trace(connection, table)
    if counted is None or seen is None or seen.following < len(_ROWS):
        return None
    if not seen.watched or counted.trace != seen.trace:
        counted = run(connection, "count_state", schema=schema, table=name, trace=seen.trace).one()
    return StateDigest(keys=counted.keys, digest=int(counted.digest))


def state_content(connection: Connection, table: str) -> StateDigest | None:
    """The number of keys and the digest of a table, by reading all of it; None if the table is gone. Locks nothing."""
    schema, name = split_table(table)
    if find_target(connection, table) is None:
        return None
    counted = run(connection, "state_content", schema=schema, table=name).one()
    return StateDigest(keys=counted.keys, digest=int(counted.digest))


def _trace(connection: Connection, table: str) -> Row[tuple[object, ...]] | None:
    schema, name = split_table(table)
    return run(
        connection, "state_trace", schema=schema, table=name, triggers=FOLLOWED, counting=len(_ROWS)
    ).one_or_none()
