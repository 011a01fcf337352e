"""State tables and event times: the adapter behind `epochline.ports.States`, and the triggers that count a state table.

The triggers keep a table's number of keys and its digest in the ledger. A write that no trigger sees leaves a trace in
the catalog, or needs triggers that are not as `follow` makes them. In both cases the whole table is read, so that what
is compared with the last epoch is what the table holds (ADR 0043).
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from psycopg2 import sql

from epochline.declare.columns import END
from epochline.declare.event_time import PartitionTime, TimeStanding
from epochline.declare.names import FOLLOWED, WRITER, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest, StateStanding
from epochline.postgres.queries.statements import Connection, InTransaction, Row, change, compose, query, run, where
from epochline.postgres.targets.catalog import find_target
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import TopicPartition

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
    identifier = sql.Identifier(schema, name)
    run(connection, "follow_state_table", **where(table))
    row_trigger = ("INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW", "follow_state_replicated", "REPLICA")
    triggers = {f"{FOLLOWED}_replicated": row_trigger}
    for event, of_table in _ROWS.items():
        function = _FUNCTIONS.get(event, "follow_state")
        triggers[f"{FOLLOWED}_{event}"] = (f"{of_table} FOR EACH STATEMENT", function, "ALWAYS")
    for trigger, (event, function, fires) in triggers.items():
        parts = {"trigger": trigger, "table": identifier, "function": sql.Identifier("epochline", function)}
        parts |= {"event": compose(event, table=identifier), "fires": sql.SQL(fires)}
        change(connection, "CREATE OR REPLACE TRIGGER {trigger} AFTER {event} EXECUTE FUNCTION {function}()", **parts)
        change(connection, "ALTER TABLE {table} ENABLE {fires} TRIGGER {trigger}", **parts)
    if run(connection, "role_exists", role=WRITER).scalar_one():
        for grant in ("GRANT USAGE ON SCHEMA {schema} TO {writer}", "GRANT SELECT ON {table} TO {writer}"):
            change(connection, grant, schema=schema, table=identifier, writer=WRITER)


def mend(connection: Connection, table: str) -> None:
    """Make the triggers of a state table as `follow` makes them, where something else has changed them.

    A table that Epochline did not create, or that belongs to another login, is left as it is.
    """
    seen = _trace(connection, table)
    if seen is not None and seen.owned and not seen.watched and is_followed(connection, table):
        follow(connection, table)


def is_followed(connection: Connection, table: str) -> bool:
    """Whether Epochline created a state table of this name. Locks its counts."""
    return run(connection, "lock_state", **where(table)).one_or_none() is not None


def state_now(connection: Connection, table: str, *, read: bool = False) -> StateDigest | None:
    """The number of keys and the digest of a state table, with a lock that other writers wait for.

    The triggers' counts are used if they have seen every write, else the whole table is read and counted. With ``read``
    it is in any case: what rots on a disk fires no trigger.

    Returns:
        None if Epochline did not create the table, or if one of its triggers is missing or disabled.
    """
    counted = run(connection, "lock_state", **where(table)).one_or_none()
    # A statement after the lock: in the same one, the catalog would be read as it was before the wait for the lock.
    seen = _trace(connection, table)
    if counted is None or seen is None or seen.following < len(_ROWS):
        return None
    if read or not seen.watched or counted.trace != seen.trace:
        counted = run(connection, "count_state", **where(table), trace=seen.trace).one()
    return StateDigest(keys=counted.keys, digest=int(counted.digest))


def state_content(connection: Connection, table: str) -> StateDigest | None:
    """The number of keys and the digest of a table, by reading all of it; None if the table is gone. Locks nothing."""
    if find_target(connection, table) is None:
        return None
    counted = run(connection, "state_content", **where(table)).one()
    return StateDigest(keys=counted.keys, digest=int(counted.digest))


def _trace(connection: Connection, table: str) -> Row | None:
    return run(connection, "state_trace", **where(table), triggers=FOLLOWED, counting=len(_ROWS)).one_or_none()


class PostgresStates(InTransaction):
    """Counts and digests of state tables; watermarks, and the newest event time of each partition."""

    def standings(self, pipeline: Pipeline, *, read: bool = False) -> Mapping[str, StateStanding]:
        standings = {}
        for state in pipeline.states:
            standing = self.left(pipeline.name, state.table)
            now = state_now(self._connection, state.table, read=read)
            if not read and now not in (None, standing.left):
                # A trigger that counts out a row which rotted is wrong from then on.
                now = state_now(self._connection, state.table, read=True)
            followed = now is not None or is_followed(self._connection, state.table)
            standings[state.table] = replace(standing, now=now, followed=followed)
        return standings

    def left(self, pipeline: str, table: str) -> StateStanding:
        """What the last committed epoch left in a state table, whatever the table holds now."""
        left = self._run("state_left", pipeline=pipeline, state=table).one_or_none()
        if left is None:
            return StateStanding(now=None)
        return StateStanding(now=None, left=StateDigest(keys=left.keys, digest=int(left.digest)), left_by=left.epoch_id)

    def last_committed(self, pipeline: str) -> int | None:
        epoch_id: int | None = self._run("last_committed", pipeline=pipeline).scalar_one()
        return epoch_id

    def leave(self, pipeline: Pipeline, epoch_id: int) -> None:
        for state in pipeline.states:
            left = {"pipeline": pipeline.name, "state": state.table, "epoch_id": epoch_id}
            self._run("leave_state", **left, **where(state.table))

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        return TimeStanding(
            watermark=self._run("watermark_left", pipeline=pipeline.name, before=None).scalar_one_or_none(),
            partitions={
                (row.topic, row.partition): PartitionTime(newest=row.newest_event_time, read_at=row.read_at)
                for row in self._run("event_times", pipeline=pipeline.name)
                if pipeline.source.reads(row.topic)
            },
            now=self._run("now").scalar_one(),
        )

    def keep_unread(self, epoch: Epoch, partitions: Collection[TopicPartition]) -> None:
        unread = [[tp.topic, tp.partition] for tp in sorted(partitions)]
        self._run("keep_unread", pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, unread=json.dumps(unread))

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        windows = pipeline.windowing
        if windows is None:
            return False
        open_windows = sql.Identifier(*split_table(windows.open_windows(pipeline.sinks).table))
        closing = "SELECT 1 FROM {windows} WHERE {end} <= {after} AND ({end} <= {before}) IS NOT TRUE LIMIT 1"
        return bool(query(self._connection, closing, windows=open_windows, end=END, after=after, before=before))
