"""Actions of operators in memory, and settings and failures of epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from epochline.ports import Aborts, ActionRow, Decision, PipelineRow, PipelineStatus
from epochline.protocol.epoch import Epoch, EpochKind, Run
from epochline.protocol.failures import RecordedError
from tests.in_memory.rows import Side


class FakeOperators(Side):
    """Implements `epochline.ports.Operators`."""

    def standing(self, pipeline: str) -> PipelineStatus:
        return self.rows.standing.get(pipeline, PipelineStatus())

    def pause(self, pipeline: str, by: str, reason: str, command: str | None = None) -> None:
        decided = Decision(by=by, at=self._now(), reason=reason, command=command)
        self.rows.standing[pipeline] = replace(self.standing(pipeline), paused=decided)

    def resume(self, pipeline: str) -> None:
        self.rows.standing[pipeline] = replace(self.standing(pipeline), paused=None)

    def drop(self, pipeline: str, by: str, reason: str) -> None:
        decided = Decision(by=by, at=self._now(), reason=reason)
        self.rows.standing[pipeline] = replace(self.standing(pipeline), dropped=decided)
        self.rows.claims = {table: owner for table, owner in self.rows.claims.items() if owner != pipeline}

    def begin_generation(self, pipeline: str, cluster_id: str | None) -> PipelineRow:
        row = self.rows.pipelines[pipeline]
        begun = replace(row, generation=row.generation + 1, cluster_id=cluster_id or row.cluster_id)
        self.rows.pipelines[pipeline] = begun
        return begun

    def record(self, row: ActionRow) -> ActionRow:
        written = replace(row, action_id=len(self.rows.actions) + 1, acted_at=self._now())
        self.rows.actions.append(written)
        return written

    def actions(self, pipeline: str) -> Sequence[ActionRow]:
        return [row for row in self.rows.actions if row.pipeline == pipeline]


class FakeHistory(Side):
    """Implements `epochline.ports.History`."""

    def keep_settings(self, epoch: Epoch, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self.rows.settings[epoch.pipeline, epoch.epoch_id] = settings

    def settings(self, epoch: Epoch) -> Mapping[str, Mapping[str, Any]]:
        return self.rows.settings.get((epoch.pipeline, epoch.epoch_id), {})

    def pause_left(self, pipeline: str, pause: timedelta) -> timedelta:
        committed = [epoch.committed_at for epoch in self._tx.epochs.of(pipeline) if epoch.committed_at is not None]
        return max(timedelta(0), max(committed) + pause - self._now()) if committed else timedelta(0)

    def interval_left(self, pipeline: str, interval: timedelta) -> timedelta:
        own = (EpochKind.REGULAR, EpochKind.IDLE)
        planned = [epoch.planned_at for epoch in self._tx.epochs.of(pipeline) if epoch.kind in own]
        return max(timedelta(0), max(planned) + interval - self._now()) if planned else timedelta(0)

    def failed_attempts(self, pipeline: str, interval: timedelta) -> int:
        unsealed = [row.attempt for row in self.rows.attempts.values() if not row.attempt.sealed]
        failed = [self.rows.failed_at.get(one.attempt_id) for one in unsealed if one.pipeline == pipeline]
        return sum(1 for moment in failed if moment and moment > self._now() - interval)

    def errors(self, epoch: Epoch) -> Sequence[tuple[str | None, str | None]]:
        newest_first = sorted(self._tx.attempts.of(epoch), key=lambda one: one.number, reverse=True)
        return [(one.error_class, one.error) for one in newest_first if one.number > epoch.attempts_before]

    def plan_failed(self, pipeline: str, run: Run, error: RecordedError) -> None:
        self.rows.plan_failures[pipeline] = error

    def plan_succeeded(self, pipeline: str) -> None:
        self.rows.plan_failures.pop(pipeline, None)

    def measured(self, pipeline: str, key: str, epochs: int) -> Sequence[Decimal]:
        return ()

    def aborts(self, pipeline: str) -> Aborts:
        last = self._tx.states.last_committed(pipeline) or 0
        counts = {number: count for (name, number), count in self.rows.aborts.items() if name == pipeline}
        actions = self._tx.operators.actions(pipeline)
        pauses = [one.after["aborts"] for one in actions if one.after and "aborts" in one.after]
        ever = sum(counts.values())
        since_commit = sum(count for number, count in counts.items() if number > last)
        return Aborts(in_a_row=min(since_commit, ever - max(pauses, default=0)), ever=ever)
