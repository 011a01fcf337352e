"""Targets in memory, which know mode ``append`` alone, with the quarantine, keyed state and event times."""

import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from epochline.declare.event_time import TimeStanding
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest, StateStanding
from epochline.declare.table import PostgresTable
from epochline.errors import TargetError
from epochline.ports import Applied, Claims, Fit, Held, Prepared, Selection, TableDifference
from epochline.postgres.targets.claims import folders_of
from epochline.protocol.bounds import Measured
from epochline.protocol.epoch import Epoch, EpochState
from epochline.protocol.offsets import TopicPartition
from epochline.protocol.refused import RefusedRow
from epochline.protocol.staging import StagedTable
from tests.in_memory.rows import Side


class FakeTargets(Side):
    """Implements `epochline.ports.Targets`."""

    def inspect(self, pipeline: Pipeline) -> Mapping[str, Mapping[str, str]]:
        missing = [sink.table for sink in pipeline.tables if sink.table not in self.rows.targets]
        if missing:
            raise TargetError(f"{pipeline.name}: target {missing[0]} does not exist.", "migrate")
        return {sink.table: dict(sink.columns or {}) for sink in pipeline.tables}

    def compare(self, pipeline: Pipeline) -> Fit:
        return Fit()

    def refuse_foreign(self, pipeline: Pipeline) -> None:
        for place in _places(pipeline):
            owner = self.rows.claims.get(place, pipeline.name)
            again = f"plan {pipeline.name}"
            if owner != pipeline.name:
                raise TargetError(f"{pipeline.name}: target {place} belongs to pipeline {owner}.", again)
            rows = self.rows.targets.get(place, [])
            if place not in self.rows.claims and any(row.get("_epoch") is not None for row in rows):
                raise TargetError(f"{pipeline.name}: {place} holds rows that another pipeline wrote.", again)

    def claim(self, pipeline: Pipeline) -> None:
        self.refuse_foreign(pipeline)
        self.rows.claims.update(dict.fromkeys(_places(pipeline), pipeline.name))

    def lost(self, pipeline: Pipeline) -> Mapping[str, str]:
        return {}

    def accept(self, pipeline: Pipeline, epoch_id: int) -> None:
        pass

    def claimed(self, pipeline: str) -> Sequence[str]:
        mine = [place for place, owner in self.rows.claims.items() if owner == pipeline]
        return sorted(place if "/" in place else f"public.{place}" for place in mine)

    def keeps_order(self, pipeline: Pipeline) -> Mapping[str, bool]:
        return {}

    def restart_order(self, pipeline: Pipeline) -> None:
        pass

    def create(self, pipeline: Pipeline) -> Sequence[str]:
        for sink in pipeline.tables:
            if (sink.mode == "append" and sink.key) or sink.insert_time:
                raise NotImplementedError(f"{sink.table}: targets in memory know no unique key and no insert time")
        made = [sink.table for sink in pipeline.tables if sink.table not in self.rows.targets]
        self.rows.targets.update({table: [] for table in made})
        return made

    def free_connections(self) -> int:
        return 100

    def count(self, staged: StagedTable) -> int | None:
        rows = self.rows.staging.get(staged.table)
        return None if rows is None else len(rows)

    def held(self, staged: StagedTable) -> Held | None:
        rows = self.rows.staging.get(staged.table)
        return None if rows is None else Held(rows=len(rows), digest=str(_digest_of(rows).digest))

    def prepare(self, pipeline: Pipeline, sink: PostgresTable, staged: StagedTable, epoch: Epoch) -> Prepared:
        return Prepared()

    def measure(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Measured:
        if pipeline.bounds is not None and pipeline.bounds.measures:
            raise NotImplementedError(f"{pipeline.name}: targets in memory know no SQL")
        return Measured()

    def try_out(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Sequence[RefusedRow]:
        return ()

    def apply(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Mapping[str, Applied]:
        for sink, staged in tables:
            self.rows.targets[sink.table] += [
                {**row, "_epoch": epoch.epoch_id} for row in self.rows.staging[staged.table]
            ]
        return {sink.table: Applied(rows=len(self.rows.staging[staged.table])) for sink, staged in tables}

    def keep_quarantine(self, staged: StagedTable, epoch: Epoch) -> int:
        where = {"_pipeline": epoch.pipeline, "_generation": epoch.generation, "_epoch": epoch.epoch_id}
        self.rows.quarantine += [{**row, **where} for row in self.rows.staging[staged.table]]
        return len(self.rows.staging[staged.table])

    def cannot_undo(self, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> str | None:
        return None

    def difference(self, sink: PostgresTable, staged: StagedTable, epoch_id: int, samples: int) -> TableDifference:
        was = [{**row, "_epoch": None} for row in self.rows.targets[sink.table] if row["_epoch"] == epoch_id]
        now = [{**row, "_epoch": None} for row in self.rows.staging[staged.table]]
        same = sum(1 for row in now if row in was)
        return TableDifference(
            table=sink.table, same=same, inserted=len(now) - same, deleted=len(was) - same, changed=0, samples=(),
        )  # fmt: skip

    def undo(self, pipeline: Pipeline, epochs: Sequence[int]) -> Mapping[str, int]:
        return {sink.table: self.undo_rows(sink.table, epochs) for sink in pipeline.targets}

    def account(self) -> None:
        pass

    def undo_rows(self, table: str, epochs: Sequence[int]) -> int:
        """Take the rows of these epochs out of a table; how many."""
        rows = self.rows.targets[table]
        self.rows.targets[table] = [row for row in rows if row["_epoch"] not in epochs]
        return len(rows) - len(self.rows.targets[table])

    def allow_time(self, statement: timedelta) -> None:
        pass

    def limit_time(self, statement: timedelta, lock: timedelta) -> None:
        pass


def _places(pipeline: Pipeline) -> list[str]:
    return [*(sink.table for sink in pipeline.tables), *folders_of(pipeline)]


def _quarantine_key(row: Mapping[str, Any]) -> tuple[int, str, int, int]:
    return row["_generation"], row["topic"], row["partition"], row["offset"]


class FakeQuarantine(Side):
    """Implements `epochline.ports.Quarantine`."""

    def selected(self, pipeline: str, selection: Selection) -> Claims:
        return Counter((row["topic"], row["partition"]) for row in self._selected(pipeline, selection))

    def claim_records(self, epoch: Epoch, selection: Selection) -> int:
        keys = [_quarantine_key(row) for row in self._selected(epoch.pipeline, selection)]
        self.rows.requeue_claims[epoch.pipeline, epoch.epoch_id] = keys
        return len(keys)

    def claims(self, epoch: Epoch) -> Claims:
        return Counter((row["topic"], row["partition"]) for row in self._claimed(epoch))

    def claims_are_free(self, epoch: Epoch) -> bool:
        return all(row.get("requeued_by") is None for row in self._claimed(epoch))

    def requeue(self, staged: StagedTable, epoch: Epoch) -> tuple[int, int]:
        failed = {(row["topic"], row["partition"], row["offset"]): row for row in self.rows.staging[staged.table]}
        done = stay = 0
        for row in self._claimed(epoch):
            again = failed.get((row["topic"], row["partition"], row["offset"]))
            if row.get("requeued_by") is not None:
                continue
            if again is not None:
                row["reason"], stay = again["reason"], stay + 1
            else:
                row["requeued_by"], done = epoch.epoch_id, done + 1
        return done, stay

    def _selected(self, pipeline: str, selection: Selection) -> list[dict[str, Any]]:
        wanted = {
            "_pipeline": pipeline, "_generation": selection.generation, "_epoch": selection.epoch_id,
            "topic": selection.topic, "partition": selection.partition, "offset": selection.offset,
        }  # fmt: skip
        like = None if selection.reason is None else re.escape(selection.reason).replace("%", ".*").replace("_", ".")
        return [
            row
            for row in self.rows.quarantine
            if row.get("requeued_by") is None
            and all(value is None or row.get(name) == value for name, value in wanted.items())
            and (like is None or re.fullmatch(like, row["reason"], re.DOTALL))
        ]

    def _claimed(self, epoch: Epoch) -> list[dict[str, Any]]:
        keys = set(self.rows.requeue_claims.get((epoch.pipeline, epoch.epoch_id), ()))
        return [row for row in self.rows.quarantine if _quarantine_key(row) in keys]


def _digest_of(rows: Sequence[Mapping[str, Any]]) -> StateDigest:
    return StateDigest(keys=len(rows), digest=zlib.crc32(repr(rows).encode()))


class FakeStates(Side):
    """Implements `epochline.ports.States`. There are no event times without Spark."""

    def standings(self, pipeline: Pipeline, *, read: bool = False) -> Mapping[str, StateStanding]:
        found = {}
        for state in pipeline.states:
            rows = self.rows.targets[state.table]
            left_by, left = self.rows.states.get((pipeline.name, state.table), (None, None))
            found[state.table] = StateStanding(now=_digest_of(rows), left=left, left_by=left_by)
        return found

    def last_committed(self, pipeline: str) -> int | None:
        epochs = self._tx.epochs.of(pipeline)
        return max((epoch.epoch_id for epoch in epochs if epoch.state is EpochState.COMMITTED), default=None)

    def leave(self, pipeline: Pipeline, epoch_id: int) -> None:
        for state in pipeline.states:
            self.rows.states[pipeline.name, state.table] = epoch_id, _digest_of(self.rows.targets[state.table])

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        return TimeStanding(watermark=None, partitions={}, now=self._now())

    def keep_unread(self, epoch: Epoch, partitions: Collection[TopicPartition]) -> None:
        pass

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        return False
