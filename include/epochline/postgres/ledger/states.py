"""State tables and event times, as epochs left them: the adapter behind `epochline.ports.States`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import END
from epochline.declare.event_time import PartitionTime, TimeStanding
from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest, StateStanding
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run as execute
from epochline.postgres.targets.state_triggers import is_followed, state_now
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import TopicPartition


class PostgresStates:
    """Counts and digests of state tables; watermarks, and the newest event time of each partition."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def standings(self, pipeline: Pipeline) -> Mapping[str, StateStanding]:
        return {state.table: self._standing(pipeline.name, state.table) for state in pipeline.states}

    def _standing(self, pipeline: str, table: str) -> StateStanding:
        now = state_now(self._connection, table)
        followed = now is not None or is_followed(self._connection, table)
        return replace(self.left(pipeline, table), now=now, followed=followed)

    def left(self, pipeline: str, table: str) -> StateStanding:
        """What the last committed epoch left in a state table, whatever the table holds now."""
        left = execute(self._connection, "state_left", pipeline=pipeline, state=table).one_or_none()
        if left is None:
            return StateStanding(now=None)
        return StateStanding(now=None, left=StateDigest(keys=left.keys, digest=int(left.digest)), left_by=left.epoch_id)

    def last_committed(self, pipeline: str) -> int | None:
        found: int | None = execute(self._connection, "last_committed", pipeline=pipeline).scalar_one()
        return found

    def leave(self, pipeline: Pipeline, epoch_id: int) -> None:
        for state in pipeline.states:
            schema, name = split_table(state.table)
            execute(
                self._connection, "leave_state",
                pipeline=pipeline.name, state=state.table, epoch_id=epoch_id, schema=schema, table=name,
            )  # fmt: skip

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        left = execute(self._connection, "watermark_left", pipeline=pipeline.name).scalar_one_or_none()
        rows = execute(self._connection, "event_times", pipeline=pipeline.name)
        return TimeStanding(
            watermark=left,
            partitions={
                (row.topic, row.partition): PartitionTime(newest=row.newest_event_time, read_at=row.read_at)
                for row in rows
                if pipeline.source.reads(row.topic)
            },
            now=execute(self._connection, "now").scalar_one(),
        )

    def keep_unread(self, epoch: Epoch, partitions: Collection[TopicPartition]) -> None:
        execute(
            self._connection, "keep_unread",
            pipeline=epoch.pipeline, epoch_id=epoch.epoch_id,
            unread=json.dumps([[one.topic, one.partition] for one in sorted(partitions)]),
        )  # fmt: skip

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        windows = pipeline.windowing
        if windows is None:
            return False
        open_windows = windows.open_windows(pipeline.sinks)
        statement = sql.SQL(
            "SELECT EXISTS (SELECT FROM {} WHERE {end} <= {after}"
            " AND {end} > coalesce({before}::timestamptz, '-infinity'))"
        )
        _, rows = execute_sql(
            self._connection,
            statement.format(
                sql.Identifier(*split_table(open_windows.table)),
                end=sql.Identifier(END), after=sql.Literal(after), before=sql.Literal(before),
            ),
        )  # fmt: skip
        return bool(rows[0][0])
