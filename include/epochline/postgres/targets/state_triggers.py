"""The triggers of a state table, which keep its number of keys and its digest in the ledger, and what they counted.

A write that no trigger sees leaves a trace in the catalog, or needs triggers that are not as `follow` makes them. In
both cases the whole table is read, so that what is compared with the last epoch is what the table holds (ADR 0043).
"""

from psycopg2 import sql
from sqlalchemy import Connection, Row

from epochline.declare.names import FOLLOWED, WRITER, split_table
from epochline.declare.state import StateDigest
from epochline.postgres.queries.composed import change, compose
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.catalog import find_target

_ROWS = {
    "insert": "INSERT ON {table} REFERENCING NEW TABLE AS new_rows",
    "update": "UPDATE ON {table} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "DELETE ON {table} REFERENCING OLD TABLE AS old_rows",
    "truncate": "TRUNCATE ON {table}",
}
_FUNCTIONS = {"truncate": "follow_state_truncated"}


def follow(connection: Connection, table: str) -> None:
    """Create or mend the triggers of a state table, and let Spark jobs read the table. The next check counts its rows.

    The counting triggers also fire in sessions with ``session_replication_role = replica``. A trigger for each row
    fires in those alone, because a subscription fires no statement trigger.
    """
    schema, name = split_table(table)
    where = sql.Identifier(schema, name)
    run(connection, "follow_state_table", schema=schema, table=name)
    each = ("INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW", "follow_state_replicated", "REPLICA")
    triggers = {f"{FOLLOWED}_replicated": each}
    for event, of_table in _ROWS.items():
        function = _FUNCTIONS.get(event, "follow_state")
        triggers[f"{FOLLOWED}_{event}"] = (f"{of_table} FOR EACH STATEMENT", function, "ALWAYS")
    for trigger, (event, function, fires) in triggers.items():
        parts = {"trigger": trigger, "table": where, "function": sql.Identifier("epochline", function)}
        parts |= {"event": compose(event, table=where), "fires": sql.SQL(fires)}
        change(connection, "CREATE OR REPLACE TRIGGER {trigger} AFTER {event} EXECUTE FUNCTION {function}()", **parts)
        change(connection, "ALTER TABLE {table} ENABLE {fires} TRIGGER {trigger}", **parts)
    if run(connection, "role_exists", role=WRITER).scalar_one():
        for grant in ("GRANT USAGE ON SCHEMA {schema} TO {writer}", "GRANT SELECT ON {table} TO {writer}"):
            change(connection, grant, schema=schema, table=where, writer=WRITER)


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
