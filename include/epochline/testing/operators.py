"""Actions of operators in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from epochline.ports import ActionRow, Decision, PipelineRow, PipelineStatus
from epochline.testing.side import Side


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
