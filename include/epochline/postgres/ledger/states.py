"""Counts and digests of state tables: the adapter behind `epochline.ports.States`."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from epochline.declare.names import FOLLOWED, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest, StateStanding
from epochline.postgres.queries.statements import run as execute

TRIGGERS = 4
"""Triggers of a state table: for INSERT, UPDATE, DELETE and TRUNCATE."""


class PostgresStates:
    """The current counts and digests of state tables, and those that epochs left."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def standings(self, pipeline: Pipeline) -> Mapping[str, StateStanding]:
        return {state.table: self._standing(pipeline.name, state.table) for state in pipeline.states}

    def _standing(self, pipeline: str, table: str) -> StateStanding:
        now = state_now(self._connection, table)
        left = execute(self._connection, "state_left", pipeline=pipeline, state=table).one_or_none()
        return StateStanding(
            now=now,
            left=None if left is None else StateDigest(keys=left.keys, digest=int(left.digest)),
            left_by=None if left is None else left.epoch_id,
        )

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


def state_now(connection: Connection, table: str) -> StateDigest | None:
    """The number of keys and the digest of a state table, with a lock that other writers wait for.

    A table that was created again is counted again. None if the table's triggers are missing or disabled.
    """
    where = dict(zip(("schema", "table"), split_table(table), strict=True))
    now = execute(connection, "state_now", **where, triggers=FOLLOWED).one_or_none()
    if now is None or now.triggers < TRIGGERS:
        return None
    if not now.is_same:
        now = execute(connection, "count_state", **where).one()
    return StateDigest(keys=now.keys, digest=int(now.digest))
