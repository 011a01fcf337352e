"""Settings and failures of epochs: the adapter behind `epochline.ports.History`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from epochline.ports import Aborts
from epochline.postgres.queries.statements import run as execute
from epochline.protocol.epoch import Epoch, Run
from epochline.protocol.failures import RecordedError


class PostgresHistory:
    """Settings and failures, read from the rows of epochs, attempts and actions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def keep_settings(self, epoch: Epoch, settings: Mapping[str, Mapping[str, Any]]) -> None:
        execute(
            self._connection, "keep_settings",
            pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, settings=json.dumps(settings),
        )  # fmt: skip

    def settings(self, epoch: Epoch) -> Mapping[str, Mapping[str, Any]]:
        found: Mapping[str, Mapping[str, Any]] = execute(
            self._connection, "settings_of_epoch", pipeline=epoch.pipeline, epoch_id=epoch.epoch_id
        ).scalar_one()
        return found

    def pause_left(self, pipeline: str, pause: timedelta) -> timedelta:
        left = execute(self._connection, "pause_left", pipeline=pipeline, pause=pause.total_seconds()).scalar_one()
        return left or timedelta(0)

    def interval_left(self, pipeline: str, interval: timedelta) -> timedelta:
        seconds = interval.total_seconds()
        left = execute(self._connection, "interval_left", pipeline=pipeline, interval=seconds).scalar_one()
        return left or timedelta(0)

    def failed_attempts(self, pipeline: str, interval: timedelta) -> int:
        seconds = interval.total_seconds()
        return int(execute(self._connection, "failed_attempts", pipeline=pipeline, interval=seconds).scalar_one())

    def errors(self, epoch: Epoch) -> Sequence[tuple[str | None, str | None]]:
        rows = execute(
            self._connection, "errors_of_attempts",
            pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, before=epoch.attempts_before,
        )  # fmt: skip
        return [(row.error_class, row.error) for row in rows]

    def plan_failed(self, pipeline: str, run: Run, error: RecordedError) -> None:
        execute(
            self._connection, "keep_plan_failure",
            pipeline=pipeline, dag_id=run.dag_id, run_id=run.run_id, error=str(error), error_class=error.error_class,
            command=error.command,
        )  # fmt: skip

    def plan_succeeded(self, pipeline: str) -> None:
        execute(self._connection, "note_plan", pipeline=pipeline)

    def aborts(self, pipeline: str) -> Aborts:
        row = execute(self._connection, "aborts", pipeline=pipeline).one()
        return Aborts(in_a_row=row.in_a_row, ever=row.ever)
