"""Actions of operators: the adapter behind `epochline.ports.Operators`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from epochline.ports import ActionRow, Decision, PipelineRow, PipelineStatus
from epochline.postgres.queries.statements import run as execute


class PostgresOperators:
    """Decisions in the row of the pipeline, actions in a table to which rows are only added."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def standing(self, pipeline: str) -> PipelineStatus:
        row = execute(self._connection, "pipeline_status", pipeline=pipeline).one_or_none()
        if row is None:
            return PipelineStatus()
        return PipelineStatus(
            paused=(
                Decision(by=row.paused_by, at=row.paused_at, reason=row.paused_reason, command=row.paused_command)
                if row.paused_at
                else None
            ),
            dropped=(
                Decision(by=row.dropped_by, at=row.dropped_at, reason=row.dropped_reason) if row.dropped_at else None
            ),
        )

    def pause(self, pipeline: str, by: str, reason: str, command: str | None = None) -> None:
        execute(self._connection, "pause_pipeline", pipeline=pipeline, by=by, reason=reason, command=command)

    def resume(self, pipeline: str) -> None:
        execute(self._connection, "resume_pipeline", pipeline=pipeline)

    def drop(self, pipeline: str, by: str, reason: str) -> None:
        execute(self._connection, "release_targets", pipeline=pipeline)
        execute(self._connection, "drop_pipeline", pipeline=pipeline, by=by, reason=reason)

    def begin_generation(self, pipeline: str, cluster_id: str | None) -> PipelineRow:
        row = execute(self._connection, "begin_generation", pipeline=pipeline, cluster_id=cluster_id).one()
        return PipelineRow(generation=row.generation, last_epoch_id=row.last_epoch_id, cluster_id=row.cluster_id)

    def record(self, row: ActionRow) -> ActionRow:
        written = execute(
            self._connection, "write_action",
            pipeline=row.pipeline, action=row.action, epoch_id=row.epoch_id, actor=row.actor, reason=row.reason,
            before=json.dumps(row.before), after=json.dumps(row.after),
        ).one()  # fmt: skip
        return replace(row, action_id=written.action_id, acted_at=written.acted_at)

    def actions(self, pipeline: str) -> Sequence[ActionRow]:
        return [
            ActionRow(
                pipeline=row.pipeline,
                action=row.action,
                epoch_id=row.epoch_id,
                actor=row.actor,
                reason=row.reason,
                before=row.before,
                after=row.after,
                action_id=row.action_id,
                acted_at=row.acted_at,
            )
            for row in execute(self._connection, "actions", pipeline=pipeline)
        ]
