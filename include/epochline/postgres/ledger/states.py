"""State tables and event times, as epochs left them: the adapter behind `epochline.ports.States`."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from psycopg2 import sql

from epochline.declare.columns import END
from epochline.declare.event_time import TimeStanding
from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest, StateStanding
from epochline.postgres.ledger.rows import key_of, partition_time
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import InTransaction
from epochline.postgres.targets.state_triggers import is_followed, state_now
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import TopicPartition


class PostgresStates(InTransaction):
    """Counts and digests of state tables; watermarks, and the newest event time of each partition."""

    def standings(self, pipeline: Pipeline) -> Mapping[str, StateStanding]:
        return {state.table: self._standing(pipeline.name, state.table) for state in pipeline.states}

    def _standing(self, pipeline: str, table: str) -> StateStanding:
        now = state_now(self._connection, table)
        followed = now is not None or is_followed(self._connection, table)
        return replace(self.left(pipeline, table), now=now, followed=followed)

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
            schema, table = split_table(state.table)
            where = {"schema": schema, "table": table}
            self._run("leave_state", pipeline=pipeline.name, state=state.table, epoch_id=epoch_id, **where)

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        return TimeStanding(
            watermark=self._run("watermark_left", pipeline=pipeline.name, before=None).scalar_one_or_none(),
            partitions={
                (row.topic, row.partition): partition_time(row)
                for row in self._run("event_times", pipeline=pipeline.name)
                if pipeline.source.reads(row.topic)
            },
            now=self._run("now").scalar_one(),
        )

    def keep_unread(self, epoch: Epoch, partitions: Collection[TopicPartition]) -> None:
        unread = [[tp.topic, tp.partition] for tp in sorted(partitions)]
        self._run("keep_unread", **key_of(epoch), unread=json.dumps(unread))

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        windows = pipeline.windowing
        if windows is None:
            return False
        statement = sql.SQL(
            "SELECT EXISTS (SELECT FROM {} WHERE {end} <= %s AND {end} > coalesce(%s::timestamptz, '-infinity'))"
        ).format(sql.Identifier(*split_table(windows.open_windows(pipeline.sinks).table)), end=sql.Identifier(END))
        _, [(closes,)] = execute_sql(self._connection, statement, (after, before))
        return bool(closes)
