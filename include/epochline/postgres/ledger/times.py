"""Watermarks and event times: the adapter behind `epochline.ports.Times`."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import END
from epochline.declare.event_time import PartitionTime, TimeStanding
from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run as execute
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import TopicPartition


class PostgresTimes:
    """Watermarks from the rows of epochs, and the newest event time of each partition from the planned ranges."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
