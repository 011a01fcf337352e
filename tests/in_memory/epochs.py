"""Epochs and pipelines in memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochNotFoundError, PlanChangedError
from epochline.ports import NewEpoch, PipelineRow
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.bounds import Verdict
from epochline.protocol.epoch import UNFINISHED, Approval, Counts, Epoch, EpochKind, EpochState, Run
from epochline.protocol.offsets import PlannedRange
from tests.in_memory.rows import Key, Side


class FakeEpochs(Side):
    """Implements `epochline.ports.EpochRows`."""

    def of(self, pipeline: str) -> list[Epoch]:
        """The pipeline's epochs, oldest first."""
        return [self._read(epoch) for key, epoch in sorted(self.rows.epochs.items()) if key[0] == pipeline]

    def lock_pipeline(self, pipeline: str) -> PipelineRow:
        return self.rows.pipelines.setdefault(pipeline, PipelineRow(generation=1, last_epoch_id=0, cluster_id=None))

    def pipeline(self, pipeline: str) -> PipelineRow | None:
        return self.rows.pipelines.get(pipeline)

    def skip_ids(self, pipeline: str, epoch_id: int) -> None:
        row = self.rows.pipelines[pipeline]
        self.rows.pipelines[pipeline] = replace(row, last_epoch_id=max(row.last_epoch_id, epoch_id))

    def remember_cluster(self, pipeline: str, cluster_id: str) -> None:
        self.rows.pipelines[pipeline] = replace(self.rows.pipelines[pipeline], cluster_id=cluster_id)

    def pipelines(self) -> Sequence[str]:
        return sorted(self.rows.pipelines)

    def unfinished(self, pipeline: str) -> Epoch | None:
        return next((epoch for epoch in self.of(pipeline) if epoch.state in UNFINISHED), None)

    def newest_of_run(self, pipeline: str, run: Run) -> Epoch | None:
        own = [epoch for epoch in self.of(pipeline) if epoch.belongs_to(run)]
        return own[-1] if own else None

    def newest_committed(self, pipeline: str) -> Epoch | None:
        regular = [one for one in self.of(pipeline) if one.kind is EpochKind.REGULAR]
        return next((one for one in reversed(regular) if one.state is EpochState.COMMITTED), None)

    def lock(self, pipeline: str, epoch_id: int) -> Epoch:
        epoch = self.rows.epochs.get((pipeline, epoch_id))
        if epoch is None:
            raise EpochNotFoundError(f"the ledger has no epoch {epoch_id} of a pipeline {pipeline!r}.")
        return self._read(epoch)

    def find(self, pipeline: str, epoch_id: int) -> Epoch | None:
        epoch = self.rows.epochs.get((pipeline, epoch_id))
        return None if epoch is None else self._read(epoch)

    def later_than(self, pipeline: str, epoch_id: int) -> Sequence[Epoch]:
        return [e for e in self.of(pipeline) if e.epoch_id > epoch_id and e.state is not EpochState.ABORTED]

    def stale(self, after: timedelta) -> Sequence[Epoch]:
        left = [key for key, lease in sorted(self.rows.leases.items()) if lease < self._now() - after]
        return [self._read(self.rows.epochs[key]) for key in left if self.rows.epochs[key].state is EpochState.PLANNED]

    def insert(
        self, pipeline: Pipeline, row: PipelineRow, run: Run, draft: NewEpoch, targets: Mapping[str, Mapping[str, str]],
        *, lease: timedelta, note: str | None,
    ) -> Epoch:  # fmt: skip
        if self.unfinished(pipeline.name) is not None:
            raise PlanChangedError("another run wrote an unfinished epoch of the pipeline at the same moment")
        now = self.rows.pipelines[pipeline.name]
        epoch_id = now.last_epoch_id + 1
        self.rows.pipelines[pipeline.name] = replace(now, last_epoch_id=epoch_id)
        key = (pipeline.name, epoch_id)
        self.rows.leases[key] = self._now() + lease
        self.rows.ranges[key] = tuple(sorted(draft.ranges, key=lambda one: one.tp))
        for one in draft.ranges:
            self.rows.planned_ends[(*key, one.tp)] = self.rows.log_ends.get((pipeline.name, one.tp))
        self.rows.planned_targets[key] = {sink: dict(columns) for sink, columns in targets.items()}
        self.rows.declarations[key] = pipeline
        self.rows.epochs[key] = Epoch(
            pipeline=pipeline.name, epoch_id=epoch_id, generation=row.generation, state=EpochState.PLANNED, attempt=0,
            kind=draft.kind, run=run, declaration_hash=pipeline.declaration_hash, lease_expired=False,
            planned_at=self._now(), note=note, record_limit=draft.record_limit, interval=draft.interval,
            replays=draft.replays,
        )  # fmt: skip
        return self._read(self.rows.epochs[key])

    def reopen(
        self, epoch: Epoch, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]], lease: timedelta
    ) -> Epoch:
        key = (epoch.pipeline, epoch.epoch_id)
        self.rows.leases[key] = self._now() + lease
        self.rows.declarations[key] = pipeline
        self.rows.planned_targets[key] = {sink: dict(columns) for sink, columns in targets.items()}
        return self._mark(
            epoch, EpochState.PLANNED, aborted_at=None, error=None, error_class=None, error_command=None, approval=None,
            judged_attempt=None, outside=None, decided_by=None, decided_at=None, decided_reason=None,
            declaration_hash=pipeline.declaration_hash, attempts_before=epoch.attempt,
        )  # fmt: skip

    def ranges(self, epoch: Epoch) -> Sequence[PlannedRange]:
        return self.rows.ranges[epoch.pipeline, epoch.epoch_id]

    def planned_targets(self, epoch: Epoch) -> Mapping[str, Mapping[str, str]]:
        return self.rows.planned_targets[epoch.pipeline, epoch.epoch_id]

    def declaration(self, epoch: Epoch) -> Pipeline:
        return self.rows.declarations[epoch.pipeline, epoch.epoch_id]

    def last_declaration(self, pipeline: str) -> Pipeline | None:
        return next(self.declarations(pipeline), None)

    def declarations(self, pipeline: str) -> Iterator[Pipeline]:
        committed = [epoch for epoch in self.of(pipeline) if epoch.state is EpochState.COMMITTED]
        yield from map(self.declaration, committed[::-1])

    def renew_lease(self, epoch: Epoch, attempt: int, lease: timedelta) -> bool:
        live = self._tx.attempts.live(epoch)
        if epoch.state is not EpochState.PLANNED or live is None or live.number != attempt:
            return False
        self.rows.leases[epoch.pipeline, epoch.epoch_id] = self._now() + lease
        return True

    def mark_pre_committed(
        self, epoch: Epoch, counts: Counts, seen: Mapping[Key, PartitionCounts], verdict: Verdict | None = None
    ) -> None:
        judged: dict[str, Any] = {}
        if verdict is not None:
            outside = str(verdict) or None
            judged = {"approval": verdict.approval, "judged_attempt": epoch.attempt, "outside": outside}
        self._mark(epoch, EpochState.PRE_COMMITTED, counts=counts, pre_committed_at=self._now(), **judged)
        key = (epoch.pipeline, epoch.epoch_id)
        self.rows.ranges[key] = tuple(
            replace(one, records=seen[place].received) if place in seen else one
            for one in self.rows.ranges[key]
            for place in [(one.tp.topic, one.tp.partition)]
        )

    def approve(self, epoch: Epoch, attempt: int, by: str, reason: str) -> bool:
        now = self.lock(epoch.pipeline, epoch.epoch_id)
        of = (now.state, now.approval, now.judged_attempt)
        if of != (EpochState.PRE_COMMITTED, Approval.AWAITED, attempt):
            return False
        self.rows.epochs[epoch.pipeline, epoch.epoch_id] = replace(
            now, approval=Approval.APPROVED, decided_by=by, decided_at=self._now(), decided_reason=reason
        )
        return True

    def mark_committed(self, epoch: Epoch, rows_written: int) -> Epoch:
        return self._mark(epoch, EpochState.COMMITTED, rows_written=rows_written, committed_at=self._now())

    def is_undone(self, epoch: Epoch) -> bool:
        return (epoch.pipeline, epoch.epoch_id) in self.rows.undone

    def supersede(self, epoch: Epoch) -> bool:
        old = (epoch.pipeline, epoch.replays or 0)
        if old in self.rows.undone:
            return False
        self.rows.undone.add(old)
        mine = {"_pipeline": epoch.pipeline, "_epoch": epoch.replays}
        self.rows.quarantine = [row for row in self.rows.quarantine if not mine.items() <= row.items()]
        return True

    def mark_aborted(self, epoch: Epoch, reason: str) -> Epoch:
        key = (epoch.pipeline, epoch.epoch_id)
        self.rows.aborts[key] = self.rows.aborts.get(key, 0) + 1
        last = max(self._tx.attempts.of(epoch), key=lambda one: one.number, default=None)
        return self._mark(
            epoch, EpochState.ABORTED, error=reason, aborted_at=self._now(),
            error_class=last and last.error_class, error_command=last and last.error_command,
        )  # fmt: skip

    def _mark(self, epoch: Epoch, state: EpochState, **facts: Any) -> Epoch:
        key = (epoch.pipeline, epoch.epoch_id)
        self.rows.epochs[key] = replace(self.rows.epochs[key], state=epoch.to(state), **facts)
        return self._read(self.rows.epochs[key])

    def _read(self, epoch: Epoch) -> Epoch:
        lease = self.rows.leases[epoch.pipeline, epoch.epoch_id]
        return replace(epoch, lease_expired=lease < self._now())
