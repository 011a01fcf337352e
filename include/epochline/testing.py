"""Fakes that pass the same contract tests as the real adapters: a ledger in memory and a Kafka in memory.

They let planning, sealing and committing be tried in milliseconds, also by a pipeline's author.
"""

from __future__ import annotations

import copy
import re
import threading
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from epochline.declare.event_time import TimeStanding
from epochline.declare.external import Files
from epochline.declare.names import QUARANTINE
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import KafkaSource
from epochline.declare.state import StateDigest, StateStanding
from epochline.declare.table import PostgresTable
from epochline.errors import EpochNotFoundError, PlanChangedError, TargetError, TopicMissingError
from epochline.ports import (
    PAUSE_AFTER_FAILURES,
    Aborts,
    Accepted,
    ActionRow,
    AnnouncedReceipt,
    Applied,
    Attempts,
    Chain,
    Claims,
    Decision,
    DueReceipt,
    EpochRows,
    History,
    Manifest,
    MirroredOffset,
    Operators,
    PartSum,
    PipelineRow,
    PipelineStatus,
    Prepared,
    Quarantine,
    Receipts,
    Savepoints,
    Selection,
    States,
    TableDifference,
    Targets,
    Times,
    Upserted,
)
from epochline.protocol.epoch import (
    UNFINISHED,
    Attempt,
    AttemptState,
    Counts,
    Epoch,
    EpochKind,
    EpochState,
    Interval,
    Run,
)
from epochline.protocol.offsets import Head, OffsetRange, Origin, PartitionCounts, PlannedRange, TopicPartition, add_up
from epochline.protocol.planning import PartitionView, SourceView
from epochline.protocol.refused import RefusedRow
from epochline.protocol.sink import Committable, ShownEpoch, Sink, SinkAttempt, WrittenPart
from epochline.protocol.staging import StagedTable, StagingTicket
from epochline.protocol.staging_tables import staged_external, staged_tables

Key = tuple[str, int]

_LONG_AGO = datetime.fromtimestamp(0, UTC)


@dataclass
class FakeKafka:
    """Topics as ends of logs, in memory; a consumer group per pipeline. Implements `epochline.ports.OffsetSource`."""

    cluster_id: str = "fake"
    views: dict[Key, PartitionView] = field(default_factory=dict)
    times: dict[Key, list[datetime]] = field(default_factory=dict)
    """When the record at each offset was made."""
    leader_epochs: dict[Key, dict[int, int]] = field(default_factory=dict)
    """Where the log of each leader epoch begins, for partitions whose leader changed: {epoch: start offset}."""
    gaps: set[str] = field(default_factory=set)
    groups: dict[str, dict[Key, MirroredOffset]] = field(default_factory=dict)

    def produce(
        self, topic: str, partition: int, records: int, *, topic_id: str | None = None, at: datetime = _LONG_AGO
    ) -> None:
        """Append records to a partition, made if missing, all with one timestamp."""
        old = self.views.get((topic, partition))
        known = old.tp.topic_id if old else f"id-of-{topic}"
        tp = TopicPartition(topic=topic, partition=partition, topic_id=topic_id or known)
        end = (old.high_watermark if old and old.tp == tp else 0) + records
        start = old.log_start if old and old.tp == tp else 0
        self.times[topic, partition] = [*self.times.get((topic, partition), ())][: end - records] + [at] * records
        epoch = old.leader_epoch if old and old.tp == tp else 0
        self.views[topic, partition] = PartitionView(
            tp=tp, log_start=start, last_stable=end, high_watermark=end, leader_epoch=epoch
        )

    def change(self, topic: str, partition: int, **facts: Any) -> None:
        """Change what Kafka says of a partition: any field of its `PartitionView`."""
        self.views[topic, partition] = replace(self.views[topic, partition], **facts)

    def look(self, source: KafkaSource) -> SourceView:  # described by the port, here and below
        missing = [topic for topic in source.topics if topic not in {name for name, _ in self.views}]
        if missing:
            raise TopicMissingError(f"Kafka has no topic {', '.join(missing)}", missing, self.cluster_id)
        found = [v for (topic, _), v in sorted(self.views.items()) if source.pattern or topic in source.topics]
        return SourceView(cluster_id=self.cluster_id, partitions=found, invisible_allowed=frozenset(self.gaps))

    def offsets_at(self, partitions: Sequence[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for tp in partitions:
            view, times = self.views[tp.topic, tp.partition], self.times[tp.topic, tp.partition]
            readable = range(view.log_start, min(view.last_stable, len(times)))
            found[tp] = next((offset for offset in readable if times[offset] >= moment), None)
        return found

    def change_leader(self, topic: str, partition: int, *, truncate_to: int | None = None) -> None:
        """Elect another leader; an unclean election loses what lies at or above ``truncate_to``."""
        view = self.views[topic, partition]
        end = view.high_watermark if truncate_to is None else truncate_to
        epoch = (view.leader_epoch or 0) + 1
        starts = {
            old: start
            for old, start in self.leader_epochs.get((topic, partition), {0: 0}).items()
            if start < end or old == 0
        }
        self.leader_epochs[topic, partition] = {**starts, epoch: end}
        self.times[topic, partition] = self.times[topic, partition][:end]
        self.change(topic, partition, leader_epoch=epoch, high_watermark=end, last_stable=min(view.last_stable, end))

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for tp, epoch in epochs.items():
            view = self.views[tp.topic, tp.partition]
            starts = self.leader_epochs.get((tp.topic, tp.partition), {0: 0})
            later = [start for known, start in starts.items() if known > epoch]
            newest = max(starts)
            found[tp] = min(later) if later else view.high_watermark if epoch == newest else None
        return found

    def mirrored(self, group: str) -> Mapping[Key, MirroredOffset]:
        return self.groups.get(group, {})

    def mirror(
        self, group: str, heads: Sequence[Head], generation: int, epoch_id: int, token: str | None = None
    ) -> None:
        self.groups[group] = {
            (head.tp.topic, head.tp.partition): MirroredOffset(
                offset=head.next_offset, generation=generation, epoch_id=epoch_id, token=token
            )
            for head in heads
        }

    def forget(self, group: str) -> None:
        self.groups.pop(group, None)


def _quarantine_key(row: Mapping[str, Any]) -> tuple[int, str, int, int]:
    return row["_generation"], row["topic"], row["partition"], row["offset"]


@dataclass
class _AttemptRow:
    attempt: Attempt
    tables: tuple[StagedTable, ...]
    dropped: bool = False
    manifests: dict[str, Manifest] = field(default_factory=dict)
    parts: list[tuple[PartSum, dict[Key, PartitionCounts]]] = field(default_factory=list)
    fenced_writes: int = 0


@dataclass
class _ReceiptRow:
    committable: Committable
    shown_at: datetime | None
    tried: bool = False
    told_by: str | None = None
    heard: bool = False


def _offsets_by_topic(ranges: Sequence[PlannedRange]) -> dict[str, dict[str, tuple[int, int]]]:
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for one in ranges:
        found.setdefault(one.tp.topic, {})[str(one.tp.partition)] = (one.range.start, one.range.until)
    return found


@dataclass
class _Rows:
    pipelines: dict[str, PipelineRow] = field(default_factory=dict)
    epochs: dict[tuple[str, int], Epoch] = field(default_factory=dict)
    leases: dict[tuple[str, int], datetime] = field(default_factory=dict)
    ranges: dict[tuple[str, int], tuple[PlannedRange, ...]] = field(default_factory=dict)
    planned_targets: dict[tuple[str, int], dict[str, dict[str, str]]] = field(default_factory=dict)
    declarations: dict[tuple[str, int], Pipeline] = field(default_factory=dict)
    leader_epochs: dict[tuple[str, int, TopicPartition], int | None] = field(default_factory=dict)
    chains: dict[tuple[str, int, TopicPartition], list[tuple[int | None, int, int | None]]] = field(
        default_factory=dict
    )
    attempts: dict[int, _AttemptRow] = field(default_factory=dict)
    staging: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    targets: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    requeue_claims: dict[tuple[str, int], list[tuple[int, str, int, int]]] = field(default_factory=dict)
    standing: dict[str, PipelineStatus] = field(default_factory=dict)
    actions: list[ActionRow] = field(default_factory=list)
    settings: dict[tuple[str, int], Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    aborts: dict[tuple[str, int], int] = field(default_factory=dict)
    failed_at: dict[int, datetime] = field(default_factory=dict)
    states: dict[tuple[str, str], tuple[int, StateDigest]] = field(default_factory=dict)
    undone: set[tuple[str, int]] = field(default_factory=set)
    receipts: dict[tuple[str, int, str], _ReceiptRow] = field(default_factory=dict)
    accepted: dict[str, list[Accepted]] = field(default_factory=dict)


class FakeLedger:
    """A ledger, its staging and its targets in memory. Implements `epochline.ports.Ledger`.

    Transactions run one after the other, on a copy that takes the place of the original where the block ends well.
    Targets know mode ``append`` alone, and there are no savepoints.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.rows = _Rows()
        self.now = now
        self.outlets: dict[str, Sink] = {}
        """By name, what stands for the sinks that show an epoch after its commit."""
        self._one_at_a_time = threading.RLock()

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        """One of `outlets`."""
        return self.outlets[name]

    @contextmanager
    def transaction(self) -> Iterator[FakeTransaction]:
        """Keep the block's changes where it ends well."""
        with self._one_at_a_time:
            rows = copy.deepcopy(self.rows)
            yield FakeTransaction(rows, self.now)
            self.rows = rows


def _digest_of(rows: Sequence[Mapping[str, Any]]) -> StateDigest:
    return StateDigest(keys=len(rows), digest=zlib.crc32(repr(rows).encode()))


class FakeTransaction:
    """One transaction of a `FakeLedger`; its sides are itself."""

    def __init__(self, rows: _Rows, now: Callable[[], datetime]) -> None:
        self.rows = rows
        self._now = now
        self.epochs: EpochRows = self
        self.chain: Chain = self
        self.attempts: Attempts = self
        self.targets: Targets = self
        self.quarantine: Quarantine = self
        self.operators: Operators = self
        self.history: History = self
        self.states: States = self
        self.times: Times = self
        self.receipts: Receipts = self

    @property
    def savepoints(self) -> Savepoints:
        """There are none.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "a FakeLedger keeps no savepoints, whose copies are tables: try savepoint and restore on PostgreSQL"
        )

    # Epochs and pipelines.

    def lock_pipeline(self, pipeline: str) -> PipelineRow:
        return self.rows.pipelines.setdefault(pipeline, PipelineRow(generation=1, last_epoch_id=0, cluster_id=None))

    def pipeline(self, pipeline: str) -> PipelineRow | None:
        return self.rows.pipelines.get(pipeline)

    def skip_ids(self, pipeline: str, epoch_id: int) -> None:
        row = self.rows.pipelines[pipeline]
        self.rows.pipelines[pipeline] = replace(row, last_epoch_id=max(row.last_epoch_id, epoch_id))

    def remember_cluster(self, pipeline: str, cluster_id: str) -> None:
        self.rows.pipelines[pipeline] = replace(self.rows.pipelines[pipeline], cluster_id=cluster_id)

    def _of(self, pipeline: str) -> list[Epoch]:
        return [self._read(epoch) for key, epoch in sorted(self.rows.epochs.items()) if key[0] == pipeline]

    def _read(self, epoch: Epoch) -> Epoch:
        lease = self.rows.leases[epoch.pipeline, epoch.epoch_id]
        return replace(epoch, lease_expired=lease < self._now())

    def unfinished(self, pipeline: str) -> Epoch | None:
        return next((epoch for epoch in self._of(pipeline) if epoch.state in UNFINISHED), None)

    def newest_of_run(self, pipeline: str, run: Run) -> Epoch | None:
        own = [epoch for epoch in self._of(pipeline) if epoch.belongs_to(run)]
        return own[-1] if own else None

    def lock(self, pipeline: str, epoch_id: int) -> Epoch:
        epoch = self.rows.epochs.get((pipeline, epoch_id))
        if epoch is None:
            raise EpochNotFoundError(f"the ledger has no epoch {epoch_id} of a pipeline {pipeline!r}.")
        return self._read(epoch)

    def find(self, pipeline: str, epoch_id: int) -> Epoch | None:
        epoch = self.rows.epochs.get((pipeline, epoch_id))
        return None if epoch is None else self._read(epoch)

    def pipelines(self) -> Sequence[str]:
        return sorted(self.rows.pipelines)

    def stale(self, after: timedelta) -> Sequence[Epoch]:
        left = [key for key, lease in sorted(self.rows.leases.items()) if lease < self._now() - after]
        return [self._read(self.rows.epochs[key]) for key in left if self.rows.epochs[key].state is EpochState.PLANNED]

    def later_than(self, pipeline: str, epoch_id: int) -> Sequence[Epoch]:
        return [e for e in self._of(pipeline) if e.epoch_id > epoch_id and e.state is not EpochState.ABORTED]

    def insert(
        self,
        pipeline: Pipeline,
        row: PipelineRow,
        run: Run,
        ranges: Sequence[PlannedRange],
        targets: Mapping[str, Mapping[str, str]],
        *,
        kind: EpochKind,
        lease: timedelta,
        record_limit: int | None,
        note: str | None,
        interval: Interval | None = None,
        replays: int | None = None,
    ) -> Epoch:
        if self.unfinished(pipeline.name) is not None:
            raise PlanChangedError("another run wrote an unfinished epoch of the pipeline at the same moment")
        now = self.rows.pipelines[pipeline.name]
        epoch_id = now.last_epoch_id + 1
        self.rows.pipelines[pipeline.name] = replace(now, last_epoch_id=epoch_id)
        key = (pipeline.name, epoch_id)
        self.rows.leases[key] = self._now() + lease
        self.rows.ranges[key] = tuple(sorted(ranges, key=lambda one: one.tp))
        self.rows.planned_targets[key] = {sink: dict(columns) for sink, columns in targets.items()}
        self.rows.declarations[key] = pipeline
        self.rows.epochs[key] = Epoch(
            pipeline=pipeline.name,
            epoch_id=epoch_id,
            generation=row.generation,
            state=EpochState.PLANNED,
            attempt=0,
            kind=kind,
            run=run,
            declaration_hash=pipeline.declaration_hash,
            lease_expired=False,
            planned_at=self._now(),
            note=note,
            interval=interval,
            replays=replays,
        )
        return self._read(self.rows.epochs[key])

    def _mark(self, epoch: Epoch, state: EpochState, **facts: Any) -> Epoch:
        key = (epoch.pipeline, epoch.epoch_id)
        self.rows.epochs[key] = replace(self.rows.epochs[key], state=epoch.to(state), **facts)
        return self._read(self.rows.epochs[key])

    def reopen(
        self, epoch: Epoch, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]], lease: timedelta
    ) -> Epoch:
        key = (epoch.pipeline, epoch.epoch_id)
        self.rows.leases[key] = self._now() + lease
        self.rows.declarations[key] = pipeline
        self.rows.planned_targets[key] = {sink: dict(columns) for sink, columns in targets.items()}
        return self._mark(
            epoch, EpochState.PLANNED, aborted_at=None, error=None, approval=None,
            declaration_hash=pipeline.declaration_hash,
        )  # fmt: skip

    def ranges(self, epoch: Epoch) -> Sequence[PlannedRange]:
        return self.rows.ranges[epoch.pipeline, epoch.epoch_id]

    def planned_targets(self, epoch: Epoch) -> Mapping[str, Mapping[str, str]]:
        return self.rows.planned_targets[epoch.pipeline, epoch.epoch_id]

    def declaration(self, epoch: Epoch) -> Pipeline:
        return self.rows.declarations[epoch.pipeline, epoch.epoch_id]

    def last_declaration(self, pipeline: str) -> Pipeline | None:
        committed = [epoch for epoch in self._of(pipeline) if epoch.state is EpochState.COMMITTED]
        return self.declaration(committed[-1]) if committed else None

    def declarations(self, pipeline: str) -> Iterator[Pipeline]:
        committed = [epoch for epoch in self._of(pipeline) if epoch.state is EpochState.COMMITTED]
        yield from map(self.declaration, committed[::-1])

    def renew_lease(self, epoch: Epoch, attempt: int, lease: timedelta) -> bool:
        live = self.live(epoch)
        if epoch.state is not EpochState.PLANNED or live is None or live.number != attempt:
            return False
        self.rows.leases[epoch.pipeline, epoch.epoch_id] = self._now() + lease
        return True

    def mark_pre_committed(self, epoch: Epoch, counts: Counts, seen: Mapping[Key, PartitionCounts]) -> None:
        self._mark(epoch, EpochState.PRE_COMMITTED, counts=counts, pre_committed_at=self._now())

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
        return self._mark(epoch, EpochState.ABORTED, error=reason, aborted_at=self._now())

    # The chain.

    def heads(self, pipeline: str, generation: int) -> Sequence[Head]:
        found = []
        for (name, number, tp), links in self.rows.chains.items():
            if (name, number) == (pipeline, generation):
                _, until, epoch_id = max(links, key=lambda link: link[1])
                leader_epoch = self.rows.leader_epochs.get((name, number, tp))
                found.append(
                    Head(tp=tp, origin=links[0][1], next_offset=until, epoch_id=epoch_id, leader_epoch=leader_epoch)
                )
        return sorted(found, key=lambda head: head.tp)

    def reached(self, pipeline: str, generation: int, epoch_id: int) -> Sequence[Head]:
        found = []
        for (name, number, tp), links in self.rows.chains.items():
            if (name, number) == (pipeline, generation):
                then = [(start, until) for start, until, by in links if by is None or by <= epoch_id]
                ends = max(until for _, until in then)
                begins = min((start for start, _ in then if start is not None), default=ends)
                leader_epoch = self.rows.leader_epochs.get((name, number, tp))
                found.append(Head(tp=tp, origin=begins, next_offset=ends, leader_epoch=leader_epoch))
        return found

    def write_origin(self, pipeline: str, generation: int, origin: Origin) -> None:
        key = (pipeline, generation, origin.tp)
        if key not in self.rows.chains:
            self.rows.chains[key] = [(None, origin.offset, None)]
            self.rows.leader_epochs[key] = origin.leader_epoch

    def carry_over(self, pipeline: str, generation: int, head: Head, chosen_by: str) -> None:
        begun = Origin(tp=head.tp, offset=head.origin, chosen_by=chosen_by, leader_epoch=head.leader_epoch)
        self.write_origin(pipeline, generation, begun)
        if head.next_offset > head.origin:
            self.rows.chains[pipeline, generation, head.tp].append((head.origin, head.next_offset, None))

    def epochs_within(self, pipeline: str, generation: int, tp: TopicPartition, offsets: OffsetRange) -> Sequence[int]:
        return [
            epoch_id
            for start, until, epoch_id in self.rows.chains[pipeline, generation, tp]
            if start is not None and epoch_id is not None and start < offsets.until and until > offsets.start
        ]

    def advance(self, epoch: Epoch, planned: PlannedRange) -> bool:
        links = self.rows.chains[epoch.pipeline, epoch.generation, planned.tp]
        if max(until for _, until, _ in links) != planned.range.start:
            return False
        links.append((planned.range.start, planned.range.until, epoch.epoch_id))
        self.rows.leader_epochs[epoch.pipeline, epoch.generation, planned.tp] = planned.leader_epoch
        return True

    def extend_back(self, epoch: Epoch, planned: PlannedRange) -> bool:
        links = self.rows.chains[epoch.pipeline, epoch.generation, planned.tp]
        if links[0][1] != planned.range.until:
            return False
        links[0] = (None, planned.range.start, None)
        links.append((planned.range.start, planned.range.until, epoch.epoch_id))
        return True

    def superseded_until(self, pipeline: str, generation: int, tp: TopicPartition) -> int:
        origin = self.rows.chains[pipeline, generation, tp][0][1]
        earlier = [
            min(until, origin)
            for (name, number, of), links in self.rows.chains.items()
            if (name, of) == (pipeline, tp) and number < generation
            for start, until, _ in links
            if start is not None and start < origin
        ]
        return max(earlier, default=0)

    def declare_lost(self, pipeline: str, generation: int, lost: PlannedRange) -> bool:
        links = self.rows.chains[pipeline, generation, lost.tp]
        if max(until for _, until, _ in links) != lost.range.start:
            return False
        links.append((lost.range.start, lost.range.until, None))
        return True

    # Quarantined records.

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

    # Operators.

    def standing(self, pipeline: str) -> PipelineStatus:
        return self.rows.standing.get(pipeline, PipelineStatus())

    def pause(self, pipeline: str, by: str, reason: str) -> None:
        decided = Decision(by=by, at=self._now(), reason=reason)
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

    # Attempts and staging.

    def begin(
        self, epoch: Epoch, run: Run, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]
    ) -> StagingTicket:
        number, attempt_id = epoch.attempt + 1, len(self.rows.attempts) + 1
        tables = staged_tables(pipeline, targets, epoch.epoch_id, number)
        attempt = Attempt(
            attempt_id=attempt_id, pipeline=epoch.pipeline, epoch_id=epoch.epoch_id, number=number,
            token=str(uuid.uuid4()), state=AttemptState.RUNNING,
        )  # fmt: skip
        self.rows.attempts[attempt_id] = _AttemptRow(attempt=attempt, tables=tables)
        self.rows.staging.update({staged.table: [] for staged in tables})
        key = (epoch.pipeline, epoch.epoch_id)
        self.rows.epochs[key] = replace(self.rows.epochs[key], attempt=number)
        return self.ticket(attempt, pipeline, targets)

    def ticket(self, attempt: Attempt, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]) -> StagingTicket:
        return StagingTicket(
            pipeline=attempt.pipeline, epoch_id=attempt.epoch_id, attempt=attempt.number,
            attempt_id=attempt.attempt_id, application_name=attempt.application_name,
            tables=self.rows.attempts[attempt.attempt_id].tables,
            token=attempt.token, external=staged_external(pipeline),
        )  # fmt: skip

    def committed_token(self, pipeline: str, epoch_id: int) -> str | None:
        epoch = self.find(pipeline, epoch_id)
        live = None if epoch is None or epoch.state is not EpochState.COMMITTED else self.live(epoch)
        return None if live is None else live.token

    def live(self, epoch: Epoch) -> Attempt | None:
        own = [
            row.attempt
            for row in self.rows.attempts.values()
            if (row.attempt.pipeline, row.attempt.epoch_id) == (epoch.pipeline, epoch.epoch_id)
        ]
        return next((attempt for attempt in own if not attempt.fenced), None)

    def _change(self, attempt: Attempt, **facts: Any) -> None:
        row = self.rows.attempts[attempt.attempt_id]
        row.attempt = replace(row.attempt, **facts)

    def lock_attempt(self, attempt: Attempt) -> Attempt:
        return self.rows.attempts[attempt.attempt_id].attempt

    def fence(self, attempt: Attempt, reason: str) -> None:
        self.rows.failed_at.setdefault(attempt.attempt_id, self._now())
        self._change(attempt, fenced=True, state=AttemptState.FENCED)

    def seal(self, attempt: Attempt, rows_staged: int) -> None:
        self._change(attempt, sealed=True, state=AttemptState.SEALED)

    def keep_refused(self, attempt: Attempt, rows: Sequence[RefusedRow]) -> None:
        pass

    def finish(self, attempt: Attempt) -> None:
        self._change(attempt, state=AttemptState.COMMITTED)

    def manifests(self, attempt: Attempt) -> Sequence[Manifest]:
        return list(self.rows.attempts[attempt.attempt_id].manifests.values())

    def part_sums(self, attempt: Attempt) -> Sequence[PartSum]:
        sums: dict[tuple[str, str], PartSum] = {}
        for part, _ in self.rows.attempts[attempt.attempt_id].parts:
            old = sums.get((part.sink, part.write_id))
            sums[part.sink, part.write_id] = (
                part if old is None else replace(old, parts=old.parts + 1, rows=old.rows + part.rows)
            )
        return list(sums.values())

    def parts(self, attempt: Attempt, sink: str) -> Sequence[WrittenPart]:
        parts = [part for part, _ in self.rows.attempts[attempt.attempt_id].parts if part.sink == sink]
        return [WrittenPart(number=number, rows=part.rows, message={}) for number, part in enumerate(parts)]

    def seen(self, attempt: Attempt) -> Mapping[Key, PartitionCounts]:
        return add_up(seen for _, seen in self.rows.attempts[attempt.attempt_id].parts)

    def end_sessions(self, attempt: Attempt) -> int:
        return 0

    def left_over(self, pipeline: str) -> Sequence[Attempt]:
        over = (EpochState.COMMITTED, EpochState.ABORTED)
        return [
            row.attempt
            for row in self.rows.attempts.values()
            if row.attempt.pipeline == pipeline
            and not row.dropped
            and (row.attempt.fenced or self.rows.epochs[pipeline, row.attempt.epoch_id].state in over)
        ]

    def unexplained(self) -> Sequence[str]:
        known = {staged.table for row in self.rows.attempts.values() if not row.dropped for staged in row.tables}
        return sorted(set(self.rows.staging) - known)

    def drop_staging(self, attempt: Attempt) -> None:
        row = self.rows.attempts[attempt.attempt_id]
        row.dropped = True
        for staged in row.tables:
            self.rows.staging.pop(staged.table, None)

    # Targets.

    def inspect(self, pipeline: Pipeline) -> Mapping[str, Mapping[str, str]]:
        missing = [sink.table for sink in pipeline.tables if sink.table not in self.rows.targets]
        if missing:
            raise TargetError(f"{pipeline.name}: target {missing[0]} does not exist.")
        return {sink.table: dict(sink.columns or {}) for sink in pipeline.tables}

    def claim(self, pipeline: Pipeline) -> None:
        places = [sink.table for sink in pipeline.tables]
        for place in places + [sink.path for sink in pipeline.external if isinstance(sink, Files)]:
            new = place not in self.rows.claims
            owner = self.rows.claims.setdefault(place, pipeline.name)
            if new and any(row.get("_epoch") is not None for row in self.rows.targets.get(place, [])):
                raise TargetError(f"{pipeline.name}: {place} holds rows that another pipeline wrote.")
            if owner != pipeline.name:
                raise TargetError(f"{pipeline.name}: target {place} belongs to pipeline {owner}.")

    def claimed(self, pipeline: str) -> Sequence[str]:
        mine = [place for place, owner in self.rows.claims.items() if owner == pipeline]
        return sorted(place if "/" in place else f"public.{place}" for place in mine)

    def keeps_order(self, pipeline: Pipeline) -> Mapping[str, bool]:
        return {}

    def restart_order(self, pipeline: Pipeline) -> None:
        pass

    def create(self, pipeline: Pipeline) -> Sequence[str]:
        made = [sink.table for sink in pipeline.tables if sink.table not in self.rows.targets]
        self.rows.targets.update({table: [] for table in made})
        return made

    def free_connections(self) -> int:
        return 100

    def count(self, staged: StagedTable) -> int | None:
        rows = self.rows.staging.get(staged.table)
        return None if rows is None else len(rows)

    def prepare(self, pipeline: Pipeline, sink: PostgresTable, staged: StagedTable, epoch: Epoch) -> Prepared:
        return Prepared()

    def try_out(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Sequence[RefusedRow]:
        return ()

    def apply(self, pipeline: Pipeline, sink: PostgresTable, staged: StagedTable, epoch: Epoch) -> Applied:
        rows = [{**row, "_epoch": epoch.epoch_id} for row in self.rows.staging[staged.table]]
        self.rows.targets[sink.table] += rows
        return Applied(rows=len(rows))

    def standings(self, pipeline: Pipeline) -> Mapping[str, StateStanding]:
        found = {}
        for state in pipeline.states:
            rows = self.rows.targets[state.table]
            left_by, left = self.rows.states.get((pipeline.name, state.table), (None, None))
            found[state.table] = StateStanding(now=_digest_of(rows), left=left, left_by=left_by)
        return found

    def last_committed(self, pipeline: str) -> int | None:
        return max((e.epoch_id for e in self._of(pipeline) if e.state is EpochState.COMMITTED), default=None)

    def leave(self, pipeline: Pipeline, epoch_id: int) -> None:
        for state in pipeline.states:
            self.rows.states[pipeline.name, state.table] = epoch_id, _digest_of(self.rows.targets[state.table])

    def cannot_undo(self, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> str | None:
        return None

    def difference(self, sink: PostgresTable, staged: StagedTable, epoch_id: int, samples: int) -> TableDifference:
        was = [{**row, "_epoch": None} for row in self.rows.targets[sink.table] if row["_epoch"] == epoch_id]
        now = [{**row, "_epoch": None} for row in self.rows.staging[staged.table]]
        same = sum(1 for row in now if row in was)
        return TableDifference(
            table=sink.table, same=same, inserted=len(now) - same, deleted=len(was) - same, changed=0, samples=(),
        )  # fmt: skip

    def undo(self, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> int:
        return self.undo_rows(sink.table, epochs)

    def undo_rows(self, table: str, epochs: Sequence[int]) -> int:
        """Take the rows of these epochs out of a table; how many."""
        rows = self.rows.targets[table]
        self.rows.targets[table] = [row for row in rows if row["_epoch"] not in epochs]
        return len(rows) - len(self.rows.targets[table])

    def keep_quarantine(self, staged: StagedTable, epoch: Epoch) -> int:
        where = {"_pipeline": epoch.pipeline, "_generation": epoch.generation, "_epoch": epoch.epoch_id}
        self.rows.quarantine += [{**row, **where} for row in self.rows.staging[staged.table]]
        return len(self.rows.staging[staged.table])

    def limit_time(self, statement: timedelta, lock: timedelta) -> None:
        pass

    # Receipts.

    def keep_sealed(self, attempt: Attempt, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        row = self.rows.attempts[attempt.attempt_id]
        for sink, body in bodies.items():
            row.manifests[sink] = replace(row.manifests[sink], body=body)

    def write(
        self, epoch: Epoch, attempt: Attempt, pipeline: Pipeline, upserted: Mapping[str, Upserted],
        shown_before: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        manifests = self.rows.attempts[attempt.attempt_id].manifests
        names = {sink.table: (sink.table, True) for sink in pipeline.targets}
        names |= {box.topic.name: (box.table, False) for box in pipeline.outboxes}
        names |= {sink.name: (sink.name, False) for sink in pipeline.external}
        for sink, (manifest, shown) in names.items():
            if sink in shown_before:
                continue
            self.rows.receipts[epoch.pipeline, epoch.epoch_id, sink] = _ReceiptRow(
                committable=Committable(
                    attempt=SinkAttempt(
                        pipeline=epoch.pipeline, generation=epoch.generation, epoch_id=epoch.epoch_id,
                        attempt=attempt.number, token=attempt.token,
                    ),
                    rows=manifests[manifest].rows,
                    body=manifests[manifest].body or {},
                ),
                shown_at=self._now() if shown else None,
            )  # fmt: skip

    def received(self, pipeline: str, epoch_id: int) -> frozenset[str]:
        return frozenset(sink for number, sink, _ in self._receipts(pipeline) if number == epoch_id)

    def knows(self, pipeline: str, token: str) -> bool:
        known = {one.shown.token for one in self.accepted(pipeline)}
        for row in self.rows.attempts.values():
            attempt = row.attempt
            state = self.rows.epochs[attempt.pipeline, attempt.epoch_id].state
            if attempt.sealed and not attempt.fenced and state in (EpochState.PRE_COMMITTED, EpochState.COMMITTED):
                known.add(attempt.token)
        return token in known

    def accept(self, pipeline: str, shown_by: str, shown: ShownEpoch) -> None:
        self.rows.accepted.setdefault(pipeline, []).append(Accepted(shown_by=shown_by, shown=shown))

    def accepted(self, pipeline: str) -> Sequence[Accepted]:
        return list({(one.shown_by, one.shown.token): one for one in self.rows.accepted.get(pipeline, [])}.values())

    def _receipts(self, pipeline: str) -> list[tuple[int, str, _ReceiptRow]]:
        rows = [(key[1], key[2], row) for key, row in self.rows.receipts.items() if key[0] == pipeline]
        return sorted(rows, key=lambda one: one[:2])

    def due(self, pipeline: str) -> Sequence[DueReceipt]:
        return [
            DueReceipt(pipeline=pipeline, epoch_id=epoch_id, sink=sink, committable=row.committable, tried=row.tried)
            for epoch_id, sink, row in self._receipts(pipeline)
            if row.shown_at is None
        ]

    def unpublished(self, pipeline: str) -> Mapping[str, int]:
        return Counter(one.sink for one in self.due(pipeline))

    def try_to_show(self, receipt: DueReceipt) -> bool:
        row = self.rows.receipts[receipt.pipeline, receipt.epoch_id, receipt.sink]
        row.tried = True
        return row.shown_at is None

    def shown(self, receipt: DueReceipt, seconds: float | None, outbox: str | None) -> bool:
        row = self.rows.receipts[receipt.pipeline, receipt.epoch_id, receipt.sink]
        if outbox is not None:
            self.undo_rows(outbox, [receipt.epoch_id])
        if row.shown_at is not None:
            return False
        row.shown_at = self._now()
        return True

    def completed(self, pipeline: str, epoch_id: int) -> Mapping[str, Committable]:
        own = {sink: row for number, sink, row in self._receipts(pipeline) if number == epoch_id}
        if any(row.shown_at is None for row in own.values()):
            return {}
        return {sink: row.committable for sink, row in own.items()}

    def unannounced(self, pipeline: str) -> Sequence[AnnouncedReceipt]:
        return [
            AnnouncedReceipt(
                epoch_id=epoch_id,
                sink=sink,
                rows=row.committable.rows,
                shown_at=row.shown_at,
                offsets=_offsets_by_topic(self.rows.ranges[pipeline, epoch_id]),
            )
            for epoch_id, sink, row in self._receipts(pipeline)
            if row.shown_at is not None and not row.heard
        ]

    def announce(self, pipeline: str, receipts: Sequence[AnnouncedReceipt], run: Run) -> None:
        for one in receipts:
            self.rows.receipts[pipeline, one.epoch_id, one.sink].told_by = run.run_id

    def acknowledge(self, pipeline: str, receipts: Sequence[AnnouncedReceipt]) -> None:
        for one in receipts:
            row = self.rows.receipts[pipeline, one.epoch_id, one.sink]
            row.heard = row.told_by is not None

    # Event time: only Spark knows any.

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        return TimeStanding(watermark=None, partitions={}, now=self._now())

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        return False

    # Settings and failures.

    def keep_settings(self, epoch: Epoch, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self.rows.settings[epoch.pipeline, epoch.epoch_id] = settings

    def settings(self, epoch: Epoch) -> Mapping[str, Mapping[str, Any]]:
        return self.rows.settings.get((epoch.pipeline, epoch.epoch_id), {})

    def pause_left(self, pipeline: str, pause: timedelta) -> timedelta:
        committed = [epoch.committed_at for epoch in self._of(pipeline) if epoch.committed_at is not None]
        return max(timedelta(0), max(committed) + pause - self._now()) if committed else timedelta(0)

    def failed_attempts(self, pipeline: str, interval: timedelta) -> int:
        failed = [
            self.rows.failed_at[row.attempt.attempt_id]
            for row in self.rows.attempts.values()
            if row.attempt.pipeline == pipeline and row.attempt.fenced and not row.attempt.sealed
        ]
        return sum(1 for moment in failed if moment > self._now() - interval)

    def aborts(self, pipeline: str) -> Aborts:
        last = max((e.epoch_id for e in self._of(pipeline) if e.state is EpochState.COMMITTED), default=0)
        counts = {number: count for (name, number), count in self.rows.aborts.items() if name == pipeline}
        pauses = [one.after["aborts"] for one in self.actions(pipeline) if one.action == PAUSE_AFTER_FAILURES]
        ever = sum(counts.values())
        since_commit = sum(count for number, count in counts.items() if number > last)
        return Aborts(in_a_row=min(since_commit, ever - max(pauses, default=0)), ever=ever)

    # What a writer does, which on PostgreSQL is done by Spark.

    def write_part(
        self, ticket: StagingTicket, rows: Mapping[str, list[dict[str, Any]]], seen: Mapping[Key, PartitionCounts]
    ) -> bool:
        """Stage one part and count it in its manifests; False, and a fenced write, where the attempt is not live."""
        row = self.rows.attempts[ticket.attempt_id]
        if row.attempt.fenced or row.attempt.sealed:
            row.fenced_writes += 1
            return False
        for staged in ticket.written:
            new = rows.get(staged.sink, [])
            if staged in ticket.tables:
                self.rows.staging[staged.table] += new
            part = PartSum(sink=staged.sink, write_id="w", parts=1, rows=len(new))
            row.parts.append((part, dict(seen) if staged.sink == QUARANTINE else {}))
        return True

    def end_job(self, ticket: StagingTicket) -> None:
        """Write the manifests and the end mark."""
        row = self.rows.attempts[ticket.attempt_id]
        row.manifests = {
            part.sink: Manifest(sink=part.sink, write_id=part.write_id, parts=part.parts, rows=part.rows)
            for part in self.part_sums(row.attempt)
        }
        self._change(row.attempt, ended=True)
