"""What PostgreSQL says of a growing table: whether its ids only grow, how far they went, who still writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg2 import sql

_EXAMINE = """
    SELECT
        pg_is_in_recovery() AS standby,
        class.oid AS table,
        class.relkind = 'r' AND NOT class.relispartition
            AND NOT EXISTS (SELECT FROM pg_inherits WHERE class.oid IN (inhrelid, inhparent)) AS plain,
        class.relpersistence = 'p' AS permanent,
        EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = class.oid) AS replicated,
        attribute.attidentity = 'a' AS always,
        EXISTS (
            SELECT FROM pg_index
            WHERE indrelid = class.oid AND indisunique AND indisvalid AND indpred IS NULL
                AND indnkeyatts = 1 AND indkey[0] = attribute.attnum
        ) AS unique,
        sequence.seqmin AS first,
        sequence.seqincrement AS increment,
        sequence.seqcache AS cache,
        sequence.seqcycle AS cycle,
        has_sequence_privilege(sequence.seqrelid, 'SELECT') AS readable,
        sequence_namespace.nspname AS sequence_schema,
        sequence_class.relname AS sequence_name,
        concat_ws(
            '/', (SELECT system_identifier FROM pg_control_system()),
            (SELECT oid FROM pg_database WHERE datname = current_database()),
            class.oid, sequence.seqrelid, pg_relation_filenode(sequence.seqrelid)
        ) AS identity
    FROM pg_namespace AS namespace
    JOIN pg_class AS class ON class.relnamespace = namespace.oid
    JOIN pg_attribute AS attribute ON attribute.attrelid = class.oid AND NOT attribute.attisdropped
    LEFT JOIN (
        pg_depend AS depend
        JOIN pg_sequence AS sequence ON sequence.seqrelid = depend.objid
        JOIN pg_class AS sequence_class ON sequence_class.oid = sequence.seqrelid
        JOIN pg_namespace AS sequence_namespace ON sequence_namespace.oid = sequence_class.relnamespace
    ) ON depend.classid = 'pg_class'::regclass AND depend.refclassid = 'pg_class'::regclass
        AND depend.refobjid = class.oid AND depend.refobjsubid = attribute.attnum AND depend.deptype = 'i'
    WHERE namespace.nspname = %s AND class.relname = %s AND attribute.attname = %s
"""

_WRITERS = """
    SELECT locks.virtualtransaction, locks.pid, activity.application_name, activity.xact_start
    FROM pg_locks AS locks
    LEFT JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
    WHERE locks.locktype = 'relation' AND locks.mode = 'RowExclusiveLock' AND locks.granted
        AND locks.relation = %s
        AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY activity.xact_start, locks.virtualtransaction
"""
"""INSERT, COPY and MERGE take this lock before they compute a default, and their transaction keeps it to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A table's identity column, as the catalog has it at one moment. Without a sequence its fields are None."""

    standby: bool
    table: int
    plain: bool
    permanent: bool
    replicated: bool
    always: bool
    unique: bool
    first: int
    increment: int
    cache: int
    cycle: bool
    readable: bool
    sequence_schema: str
    sequence_name: str
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A transaction that holds the table's lock for writes. A prepared one has no process."""

    name: str
    pid: int | None
    application: str | None
    since: datetime | None

    @property
    def prepared(self) -> bool:
        """Whether it waits for ``COMMIT PREPARED``."""
        return self.pid is None

    def __str__(self) -> str:
        if self.prepared:
            return "a prepared transaction (see pg_prepared_xacts)"
        since = "" if self.since is None else f" since {self.since.isoformat(timespec='seconds')}"
        return f"process {self.pid}{f' ({self.application})' if self.application else ''}{since}"


def examine(cursor: Any, schema: str, table: str, key: str) -> Growth | None:
    """Read what the catalog says of a table and its key; None if there is no such table or column."""
    cursor.execute(_EXAMINE, (schema, table, key))
    row = cursor.fetchone()
    if row is None:
        return None
    return Growth(**dict(zip((column.name for column in cursor.description), row, strict=True)))


def drawn(cursor: Any, found: Growth, schema: str, table: str, key: str) -> tuple[int, int | None]:
    """The position after the newest id that was drawn, and the highest id of a row, which is never above it."""
    select = "SELECT last_value + is_called::int, (SELECT max({key}) FROM ONLY {table}) FROM {sequence}"
    cursor.execute(
        sql.SQL(select).format(
            key=sql.Identifier(key),
            table=sql.Identifier(schema, table),
            sequence=sql.Identifier(found.sequence_schema, found.sequence_name),
        )
    )
    after, highest = cursor.fetchone()
    return after, highest


def why_not(found: Growth) -> str | None:
    """The first reason why an id may appear below an end that was given; None if there is none."""
    if not found.always:
        return (
            "its key is not GENERATED ALWAYS AS IDENTITY, so a writer may give an id that the source has passed."
            " ALTER TABLE … ALTER COLUMN … SET GENERATED ALWAYS."
        )
    rules = (
        (not found.standby, "this server is a standby, which shows no locks of writers. Name the primary."),
        (found.plain, "it is no plain table, or has a parent or children. Read each partition by a table of its own."),
        (found.permanent, "it is temporary or unlogged, and a crash empties it."),
        (not found.replicated, "a subscription writes to it, with ids of another server."),
        (found.unique, "its key has no unique index of its own."),
        (
            found.cache == 1,
            f"its sequence has CACHE {found.cache}, so a session keeps ids and uses them later."
            " ALTER TABLE … ALTER COLUMN … SET CACHE 1.",
        ),
        (not found.cycle, "its sequence has CYCLE, so ids come again."),
        (found.increment > 0 and found.first >= 0, "its ids fall, or begin below 0."),
        (found.readable, "this login may not read its sequence. GRANT SELECT on the sequence."),
    )
    return next((problem for kept, problem in rules if not kept), None)


def open_writers(cursor: Any, table: int) -> Sequence[Writer]:
    """The transactions that hold the table's lock for writes now, the oldest first."""
    cursor.execute(_WRITERS, (table,))
    return [
        Writer(name=name, pid=pid, application=application, since=since)
        for name, pid, application, since in cursor.fetchall()
    ]
