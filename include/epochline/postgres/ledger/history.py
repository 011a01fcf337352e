"""What operators did, and settings and failures of epochs: the adapters behind `Operators` and `History`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from epochline.ports import Aborts, ActionRow, Decision, PipelineRow, PipelineStatus
from epochline.postgres.ledger.rows import key_of, pipeline_row
from epochline.postgres.queries.statements import InTransaction
from epochline.protocol.epoch import Epoch, Run
from epochline.protocol.failures import RecordedError


class PostgresOperators(InTransaction):
    """Decisions in the row of the pipeline, actions in a table to which rows are only added."""

    def standing(self, pipeline: str) -> PipelineStatus:
        row = self._run("pipeline_status", pipeline=pipeline).one_or_none()
        paused = dropped = None
        if row is not None and row.paused_at:
            paused = Decision(by=row.paused_by, at=row.paused_at, reason=row.paused_reason, command=row.paused_command)
        if row is not None and row.dropped_at:
            dropped = Decision(by=row.dropped_by, at=row.dropped_at, reason=row.dropped_reason)
        return PipelineStatus(paused=paused, dropped=dropped)

    def pause(self, pipeline: str, by: str, reason: str, command: str | None = None) -> None:
        self._run("pause_pipeline", pipeline=pipeline, by=by, reason=reason, command=command)

    def resume(self, pipeline: str) -> None:
        self._run("resume_pipeline", pipeline=pipeline)

    def drop(self, pipeline: str, by: str, reason: str) -> None:
        self._run("release_targets", pipeline=pipeline)
        self._run("drop_pipeline", pipeline=pipeline, by=by, reason=reason)

    def begin_generation(self, pipeline: str, cluster_id: str | None) -> PipelineRow:
        return pipeline_row(self._run("begin_generation", pipeline=pipeline, cluster_id=cluster_id).one())

    def record(self, row: ActionRow) -> ActionRow:
        values = {**asdict(row), "before": json.dumps(row.before), "after": json.dumps(row.after)}
        written = self._run("write_action", **values).one()
        return replace(row, action_id=written.action_id, acted_at=written.acted_at)

    def actions(self, pipeline: str) -> Sequence[ActionRow]:
        return [ActionRow(**row) for row in self._run("actions", pipeline=pipeline).mappings()]


class PostgresHistory(InTransaction):
    """Settings and failures, read from the rows of epochs, attempts and actions."""

    def keep_settings(self, epoch: Epoch, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self._run("keep_settings", **key_of(epoch), settings=json.dumps(settings))

    def settings(self, epoch: Epoch) -> Mapping[str, Mapping[str, Any]]:
        settings: Mapping[str, Mapping[str, Any]] = self._run("epoch", **key_of(epoch)).one().settings
        return settings

    def pause_left(self, pipeline: str, pause: timedelta) -> timedelta:
        left = self._run("pause_left", pipeline=pipeline, pause=pause.total_seconds()).scalar_one()
        return left or timedelta(0)

    def interval_left(self, pipeline: str, interval: timedelta) -> timedelta:
        left = self._run("interval_left", pipeline=pipeline, interval=interval.total_seconds()).scalar_one()
        return left or timedelta(0)

    def failed_attempts(self, pipeline: str, interval: timedelta) -> int:
        return int(self._run("failed_attempts", pipeline=pipeline, interval=interval.total_seconds()).scalar_one())

    def errors(self, epoch: Epoch) -> Sequence[tuple[str | None, str | None]]:
        rows = self._run("errors_of_attempts", **key_of(epoch), before=epoch.attempts_before)
        return [(row.error_class, row.error) for row in rows]

    def plan_failed(self, pipeline: str, run: Run, error: RecordedError) -> None:
        cause = {"error": str(error), "error_class": error.error_class, "command": error.command}
        self._run("keep_plan_failure", pipeline=pipeline, **asdict(run), **cause)

    def plan_succeeded(self, pipeline: str) -> None:
        self._run("note_plan", pipeline=pipeline)

    def measured(self, pipeline: str, key: str, epochs: int) -> Sequence[Decimal]:
        return self._run("measured_before", pipeline=pipeline, key=key, epochs=epochs).scalars()

    def aborts(self, pipeline: str) -> Aborts:
        return Aborts(**self._run("aborts", pipeline=pipeline).one()._asdict())
