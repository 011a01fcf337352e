"""Counts and digests of state tables: the adapter behind `epochline.ports.States`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest, StateStanding
from epochline.postgres.queries.statements import run as execute
from epochline.postgres.targets.state_triggers import is_followed, state_now


class PostgresStates:
    """The current counts and digests of state tables, and those that epochs left."""

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
