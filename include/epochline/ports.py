"""What the use cases need of the world, each a Protocol named for its role. Adapters do not inherit from them.

A `Transaction` is one transaction of the database that holds ledger, staging and targets; nothing in it commits by
itself (INV-2). Every method that locks says so, and locks are taken in one order everywhere: pipeline, epoch, attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import IO, Any, Protocol

from epochline.declare.event_time import TimeStanding
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import KafkaSource
from epochline.declare.state import StateStanding
from epochline.declare.table import PostgresTable
from epochline.protocol.epoch import Attempt, Counts, Epoch, EpochKind, Interval, Run
from epochline.protocol.offsets import Head, OffsetRange, Origin, PartitionCounts, PlannedRange, TopicPartition
from epochline.protocol.planning import SourceView
from epochline.protocol.refused import RefusedRow
from epochline.protocol.savepoint import Savepoint
from epochline.protocol.sink import Committable, ShownEpoch, Sink, WrittenPart
from epochline.protocol.staging import StagedTable, StagingTicket


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """A pipeline as the ledger knows it."""

    generation: int
    last_epoch_id: int
    cluster_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a driver wrote down for one sink: how many parts and rows, under which write id."""

    sink: str
    write_id: str
    parts: int
    rows: int
    body: Mapping[str, Any] | None = None
    """What the sink's seal left for its commit; None of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSum:
    """The parts that the database holds for one sink and write id of an attempt, added up."""

    sink: str
    write_id: str
    parts: int
    rows: int


class EpochRows(Protocol):
    """Epochs and the pipelines they belong to."""

    def lock_pipeline(self, pipeline: str) -> PipelineRow:
        """Lock the pipeline's row, made if missing, until the transaction ends."""

    def pipeline(self, pipeline: str) -> PipelineRow | None:
        """The pipeline's row, unlocked; None where the ledger does not know it."""

    def skip_ids(self, pipeline: str, epoch_id: int) -> None:
        """Give no later epoch this id or a lower one."""

    def remember_cluster(self, pipeline: str, cluster_id: str) -> None:
        """Note the Kafka cluster that the pipeline's offsets belong to."""

    def unfinished(self, pipeline: str) -> Epoch | None:
        """The epoch that is PLANNED or PRE_COMMITTED; there is one at most."""

    def newest_of_run(self, pipeline: str, run: Run) -> Epoch | None:
        """The run's own epoch with the highest id."""

    def lock(self, pipeline: str, epoch_id: int) -> Epoch:
        """Lock an epoch's row and return it as it is now.

        Raises:
            EpochNotFoundError: there is none.
        """

    def find(self, pipeline: str, epoch_id: int) -> Epoch | None:
        """An epoch as it is now, unlocked; None where there is none."""

    def later_than(self, pipeline: str, epoch_id: int) -> Sequence[Epoch]:
        """Epochs with a higher id that are COMMITTED, PRE_COMMITTED or PLANNED."""

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
        """Write a PLANNED epoch with its ranges, its targets' columns and the declaration (INV-3)."""

    def reopen(
        self, epoch: Epoch, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]], lease: timedelta
    ) -> Epoch:
        """Make an ABORTED epoch PLANNED again, with the same ranges and today's declaration."""

    def pipelines(self) -> Sequence[str]:
        """Every pipeline that the ledger knows, sorted."""

    def stale(self, after: timedelta) -> Sequence[Epoch]:
        """PLANNED epochs of any pipeline whose lease ended longer ago than this."""

    def ranges(self, epoch: Epoch) -> Sequence[PlannedRange]:
        """What the epoch reads, sorted by topic and partition."""

    def planned_targets(self, epoch: Epoch) -> Mapping[str, Mapping[str, str]]:
        """Per sink, the target's columns as the plan saw them."""

    def declaration(self, epoch: Epoch) -> Pipeline:
        """The declaration that the epoch was planned with."""

    def last_declaration(self, pipeline: str) -> Pipeline | None:
        """The declaration of the pipeline's newest committed epoch."""

    def declarations(self, pipeline: str) -> Iterator[Pipeline]:
        """All that epochs of the pipeline were committed with, the one that was used last first, one by one."""

    def renew_lease(self, epoch: Epoch, attempt: int, lease: timedelta) -> bool:
        """Extend the lease of a PLANNED epoch, only for its live attempt; False where it is not."""

    def mark_pre_committed(self, epoch: Epoch, counts: Counts, seen: Mapping[tuple[str, int], PartitionCounts]) -> None:
        """PLANNED → PRE_COMMITTED, with the counts of the epoch and of each range."""

    def mark_committed(self, epoch: Epoch, rows_written: int) -> Epoch:
        """PRE_COMMITTED → COMMITTED."""

    def is_undone(self, epoch: Epoch) -> bool:
        """Whether a restore or a replay undid what the epoch committed."""

    def supersede(self, epoch: Epoch) -> bool:
        """Mark the epoch that a replay read undone by it, and forget what that one had quarantined.

        False where it is undone already, or a record that it quarantined was requeued.
        """

    def mark_aborted(self, epoch: Epoch, reason: str) -> Epoch:
        """PLANNED or PRE_COMMITTED → ABORTED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an operator decided about a pipeline: who, when, why."""

    by: str
    at: datetime
    reason: str

    def __str__(self) -> str:
        return f"by {self.by} at {self.at:%Y-%m-%d %H:%M:%S %Z} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """Whether a pipeline is paused or dropped, and by whose decision."""

    paused: Decision | None = None
    dropped: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What an operator did: who, when, why, and what was so before and after, as JSON."""

    pipeline: str
    action: str
    actor: str
    reason: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    epoch_id: int | None = None
    action_id: int | None = None
    """Given by the ledger; ids of one pipeline increase."""
    acted_at: datetime | None = None


class Operators(Protocol):
    """What operators did to a pipeline. Callers hold the pipeline's row lock where they change something."""

    def standing(self, pipeline: str) -> PipelineStatus:
        """Whether the pipeline is paused or dropped."""

    def pause(self, pipeline: str, by: str, reason: str) -> None:
        """From here on no epoch is planned."""

    def resume(self, pipeline: str) -> None:
        """Undo `pause`."""

    def drop(self, pipeline: str, by: str, reason: str) -> None:
        """Mark the pipeline dropped, for good, and release its targets."""

    def begin_generation(self, pipeline: str, cluster_id: str | None) -> PipelineRow:
        """Count the generation up: what was committed before is kept and superseded; the cluster is noted anew."""

    def record(self, row: ActionRow) -> ActionRow:
        """Write an action down; it is never changed."""

    def actions(self, pipeline: str) -> Sequence[ActionRow]:
        """What was done to the pipeline, the newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which quarantined records: those of a generation that were not requeued and fit everything that is given."""

    generation: int
    epoch_id: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    reason: str | None = None
    """A pattern of SQL's LIKE."""


Claims = Mapping[tuple[str, int], int]
"""How many quarantined records, per topic and partition."""


class Quarantine(Protocol):
    """Quarantined records that a requeue epoch reads again, each once."""

    def selected(self, pipeline: str, selection: Selection) -> Claims:
        """How many records fit the selection now."""

    def claim_records(self, epoch: Epoch, selection: Selection) -> int:
        """Note that the epoch reads the selected records; how many. Written with the epoch, never changed (INV-3)."""

    def claims(self, epoch: Epoch) -> Claims:
        """How many records the epoch reads."""

    def claims_are_free(self, epoch: Epoch) -> bool:
        """Whether none of the epoch's records was requeued by another epoch meanwhile."""

    def requeue(self, staged: StagedTable, epoch: Epoch) -> tuple[int, int]:
        """In the commit: mark the epoch's records requeued, but those that failed again, which get the new reason.

        Returns:
            How many were requeued, and how many stay.
        """


class Chain(Protocol):
    """The committed ranges (INV-1)."""

    def heads(self, pipeline: str, generation: int) -> Sequence[Head]:
        """Every partition's head, also of those that have only their origin; sorted."""

    def reached(self, pipeline: str, generation: int, epoch_id: int) -> Sequence[Head]:
        """Every partition's head as it was once an epoch was committed, and none after it."""

    def write_origin(self, pipeline: str, generation: int, origin: Origin) -> None:
        """Write where a partition begins; nothing where it has an origin already."""

    def carry_over(self, pipeline: str, generation: int, head: Head, chosen_by: str) -> None:
        """Begin a generation's partition with what earlier ones committed of it: its origin, and one link to its head.

        Where origin and head are the same, nothing of it was committed and only the origin is written.
        """

    def epochs_within(self, pipeline: str, generation: int, tp: TopicPartition, offsets: OffsetRange) -> Sequence[int]:
        """Ids of the epochs that committed any of these offsets, in order."""

    def advance(self, epoch: Epoch, planned: PlannedRange) -> bool:
        """Compare-and-swap: append the range if it starts at the head; False where it does not."""

    def extend_back(self, epoch: Epoch, planned: PlannedRange) -> bool:
        """Compare-and-swap: put the range before the origin, which moves back; False where it does not end there."""

    def superseded_until(self, pipeline: str, generation: int, tp: TopicPartition) -> int:
        """How far earlier generations committed this very log before its origin in this one; 0 where they did not.

        What a restore undid was not committed.
        """

    def declare_lost(self, pipeline: str, generation: int, lost: PlannedRange) -> bool:
        """Move the head over a range that no epoch will ever read (INV-9); False where it does not start there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a look at a staging table found before its seal.

    Args:
        refused: rows that the target would not take.
        untried: the target has rules that only applying the rows shows.
    """

    refused: Sequence[RefusedRow] = ()
    untried: bool = False


class Attempts(Protocol):
    """Attempts, what they wrote, and their fencing (INV-4)."""

    def begin(
        self, epoch: Epoch, run: Run, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]
    ) -> StagingTicket:
        """Insert the epoch's next attempt and make its staging tables."""

    def live(self, epoch: Epoch) -> Attempt | None:
        """The epoch's attempt that is not fenced."""

    def committed_token(self, pipeline: str, epoch_id: int) -> str | None:
        """Token of the attempt that an epoch was committed by; None where no attempt has committed it."""

    def lock_attempt(self, attempt: Attempt) -> Attempt:
        """Wait until no writer of the attempt is in flight, and keep new ones out, until the transaction ends."""

    def ticket(self, attempt: Attempt, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]) -> StagingTicket:
        """The ticket that `begin` gave out."""

    def fence(self, attempt: Attempt, reason: str) -> None:
        """From here on nothing that the attempt writes can become visible."""

    def seal(self, attempt: Attempt, rows_staged: int) -> None:
        """Close the attempt's staging: no part is accepted any more."""

    def keep_refused(self, attempt: Attempt, rows: Sequence[RefusedRow]) -> None:
        """Note the rows that targets refused: later attempts leave their records out, of other rows people are told."""

    def finish(self, attempt: Attempt) -> None:
        """Note that the attempt's rows were committed and its staging tables are gone."""

    def manifests(self, attempt: Attempt) -> Sequence[Manifest]:
        """What the driver wrote down, one per sink."""

    def part_sums(self, attempt: Attempt) -> Sequence[PartSum]:
        """What the parts say, per sink and write id."""

    def seen(self, attempt: Attempt) -> Mapping[tuple[str, int], PartitionCounts]:
        """What the parts received, per topic and partition."""

    def parts(self, attempt: Attempt, sink: str) -> Sequence[WrittenPart]:
        """The parts of one sink, in the order of their numbers."""

    def end_sessions(self, attempt: Attempt) -> int:
        """End the database sessions of the attempt's writers, each recorded as a fenced write; how many."""

    def left_over(self, pipeline: str) -> Sequence[Attempt]:
        """Attempts whose staging is no longer needed: fenced, or of an epoch that is COMMITTED or ABORTED."""

    def unexplained(self) -> Sequence[str]:
        """Tables beside the staging tables that no attempt explains, of any pipeline, sorted."""

    def drop_staging(self, attempt: Attempt) -> None:
        """Drop the attempt's staging tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """One row that a replay makes another than was committed.

    Args:
        kind: ``inserted``, ``deleted`` or ``changed``.
        place: topic, partition, offset and number of the row.
        before, after: values by column, as text; of a changed row those that differ alone.
    """

    kind: str
    place: tuple[str, int, int, int]
    before: Mapping[str, str | None]
    after: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDifference:
    """What a replay makes of a target's rows."""

    table: str
    same: int
    inserted: int
    deleted: int
    changed: int
    samples: Sequence[RowDifference]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserted:
    """What became of the rows staged for an upsert target. Every one is counted, once (INV-9)."""

    inserted: int
    updated: int
    deleted: int
    superseded: int
    """Older than a row of their key, of the same epoch or of the table."""
    unchanged: int
    """The table says the same already: state that did not change, a delete of a key that is not there."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.inserted + self.updated + self.deleted + self.superseded + self.unchanged

    def with_superseded(self, more: int) -> Upserted:
        """The same, and some more rows that are superseded."""
        return replace(self, superseded=self.superseded + more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an epoch did to a target."""

    rows: int
    """Target rows written or deleted."""
    upserted: Upserted | None = None
    """Of an upsert, what became of its staged rows."""


class Targets(Protocol):
    """Target tables and the staging tables that feed them."""

    def inspect(self, pipeline: Pipeline) -> Mapping[str, Mapping[str, str]]:
        """Per sink, the target's columns that it fills, in order, with their types.

        Raises:
            TargetError: a table is missing or does not fit the declaration.
        """

    def claim(self, pipeline: Pipeline) -> None:
        """Note that this pipeline writes its targets.

        Raises:
            TargetError: another pipeline does.
        """

    def claimed(self, pipeline: str) -> Sequence[str]:
        """The tables that the pipeline writes, as ``schema.table``, sorted."""

    def keeps_order(self, pipeline: Pipeline) -> Mapping[str, bool]:
        """Per upsert sink, whether its table keeps what its rows were ordered by, so that an older record is known."""

    def restart_order(self, pipeline: Pipeline) -> None:
        """Let rows of the pipeline's next generation come after all that is there: its offsets begin anew."""

    def create(self, pipeline: Pipeline) -> Sequence[str]:
        """Make the tables that the declaration names and that do not exist; their names."""

    def free_connections(self) -> int:
        """How many more sessions the server would accept now."""

    def count(self, staged: StagedTable) -> int | None:
        """Rows in a staging table, None where there is no such table."""

    def prepare(self, pipeline: Pipeline, sink: PostgresTable, staged: StagedTable, epoch: Epoch) -> Prepared:
        """At the seal: index, analyze, and find what could not be committed.

        Raises:
            SealRefusedError: the commit could not go on, whatever the rows are.
        """

    def try_out(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Sequence[RefusedRow]:
        """At the seal: apply staging to these targets and take it back; the rows that are refused.

        Raises:
            SealRefusedError: the rows are refused, and no single one is to blame.
        """

    def apply(self, pipeline: Pipeline, sink: PostgresTable, staged: StagedTable, epoch: Epoch) -> Applied:
        """In the commit: staging into target, and what became of it.

        Raises:
            TargetError: a staged row of an upsert is accounted for by nothing.
        """

    def keep_quarantine(self, staged: StagedTable, epoch: Epoch) -> int:
        """In the commit: staged quarantine into the ledger; the number of records."""

    def cannot_undo(self, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> str | None:
        """Why the rows of the pipeline's newest epochs cannot be taken out of a target; None where they can."""

    def difference(self, sink: PostgresTable, staged: StagedTable, epoch_id: int, samples: int) -> TableDifference:
        """What staging holds instead of the rows that an epoch wrote into an append target with lineage."""

    def undo(self, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> int:
        """Take the rows of these epochs out of a target and put back what they replaced; the number of rows."""

    def limit_time(self, statement: timedelta, lock: timedelta) -> None:
        """Statement and lock time-outs for the rest of the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborts:
    """How often epochs of a pipeline were aborted."""

    in_a_row: int
    """Since the last commit, or since the pipeline was last paused for it."""
    ever: int


PAUSE_AFTER_FAILURES = "pause after failures"
PAUSE_BEHIND = "pause behind"
"""The action that a pipeline takes by itself; its row notes under ``aborts`` how many there had ever been."""


class History(Protocol):
    """What epochs ran with, when the last one was committed, and how often the pipeline failed since."""

    def keep_settings(self, epoch: Epoch, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Note with the epoch which settings are in force and what decided each (C10)."""

    def settings(self, epoch: Epoch) -> Mapping[str, Mapping[str, Any]]:
        """The settings that the epoch was planned with; empty where nobody noted any."""

    def pause_left(self, pipeline: str, pause: timedelta) -> timedelta:
        """How long until the last commit is ``pause`` ago, by the database's clock; nothing where it is (K9)."""

    def failed_attempts(self, pipeline: str, interval: timedelta) -> int:
        """Attempts that ended within the interval, up to now, without being sealed (R2)."""

    def aborts(self, pipeline: str) -> Aborts:
        """How often epochs of the pipeline were aborted; a re-opened one that is aborted again counts twice (K11)."""


class States(Protocol):
    """Keyed state: what its tables hold, and what epochs left in them."""

    def standings(self, pipeline: Pipeline) -> Mapping[str, StateStanding]:
        """By state table; nobody else changes them until the transaction ends."""

    def last_committed(self, pipeline: str) -> int | None:
        """Id of the pipeline's last committed epoch; None if there is none."""

    def leave(self, pipeline: Pipeline, epoch_id: int) -> None:
        """Note for every state table that the epoch left it as it is now."""


class Savepoints(Protocol):
    """Savepoints, and what a restore undoes. Callers hold the pipeline's row lock where they change something."""

    def standing(self, pipeline: Pipeline, name: str, by: str, reason: str) -> Savepoint | None:
        """A savepoint of where the pipeline stands now, not kept yet; None where no epoch was committed."""

    def keep(self, savepoint: Savepoint, pipeline: Pipeline) -> None:
        """Write it, with a copy of every state table."""

    def find(self, pipeline: str, name: str) -> Savepoint | None:
        """The savepoint that a pipeline has under a name."""

    def of(self, pipeline: str) -> Sequence[Savepoint]:
        """All of a pipeline, the newest last."""

    def delete(self, pipeline: str, name: str) -> None:
        """Delete it, with its copies."""

    def export(self, savepoint: Savepoint, into: IO[bytes]) -> None:
        """Write it, with its copies, to a file."""

    def import_savepoint(self, source: IO[bytes]) -> Savepoint:
        """Keep what a file holds, under its pipeline's name; new pipelines begin from it.

        Raises:
            SavepointFileError: the file is no savepoint or was damaged, or there is one of this name.
        """

    def later(self, pipeline: str, epoch_id: int) -> Sequence[int]:
        """Ids of the epochs that were committed after one and are not undone, in order."""

    def put_back_state(
        self, savepoint: Savepoint, pipeline: Pipeline, states: Mapping[str, str], epoch_id: int
    ) -> None:
        """Put the savepoint's copies in place of what the state tables hold.

        Args:
            savepoint: which.
            pipeline: whose state tables.
            states: for each of them, of which state of the savepoint.
            epoch_id: of the restore: what wrote the rows, where the savepoint is another pipeline's.

        Raises:
            StateError: what is there afterwards is not what was saved.
        """

    def declaration(self, savepoint: Savepoint) -> str:
        """The declaration, as JSON, under which it was made."""

    def rows_sealed(self, pipeline: str, epochs: Sequence[int]) -> Mapping[str, int]:
        """How many rows these epochs sealed, by table: sinks, state tables, the quarantine."""

    def restore(
        self,
        savepoint: Savepoint,
        pipeline: Pipeline,
        row: PipelineRow,
        run: Run,
        undone: Sequence[int],
        origins: Mapping[TopicPartition, int],
    ) -> int:
        """Write the restore's epoch, the savepoint's heads, and which epochs are undone; the epoch's id.

        ``origins`` says where each partition began, those that were met after the savepoint included: those go back to
        where they began, the others to the savepoint's head, with what was committed up to it carried over.
        Records that were quarantined by an undone epoch are forgotten, those that one requeued can be requeued again.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DueReceipt:
    """What a committed epoch still has to show in one sink.

    Args:
        sink: the sink's name.
        committable: what its seal left.
        tried: whether a publish began with it before, so that nobody knows how far it got.
    """

    pipeline: str
    epoch_id: int
    sink: str
    committable: Committable
    tried: bool

    def __str__(self) -> str:
        return f"epoch {self.epoch_id} of {self.pipeline} in {self.sink}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An epoch that the ledger lost, and a consumer group or a sink shows."""

    shown_by: str
    shown: ShownEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedReceipt:
    """A receipt as it is told to others: which epoch a sink shows, when, and which offsets it took."""

    epoch_id: int
    sink: str
    rows: int
    shown_at: datetime
    offsets: Mapping[str, Mapping[str, tuple[int, int]]]
    """By topic and partition, ``[start, until)``."""


class Receipts(Protocol):
    """Per committed epoch and sink, whether the sink shows it."""

    def keep_sealed(self, attempt: Attempt, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        """At the seal: keep with the attempt's manifests, by their sink, what sinks left for their commit."""

    def write(
        self, epoch: Epoch, attempt: Attempt, pipeline: Pipeline, upserted: Mapping[str, Upserted],
        shown_before: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """In the commit: one receipt per sink, with its rows and what became of those of an upsert, by its table.

        Tables show the epoch now, the others are due. What ``shown_before`` names gets none.
        """

    def received(self, pipeline: str, epoch_id: int) -> frozenset[str]:
        """The sinks that have a receipt of the epoch."""

    def knows(self, pipeline: str, token: str) -> bool:
        """Whether the ledger knows that an attempt was committed, or may be: it is sealed and not fenced.

        Also known is what an operator accepted.
        """

    def accept(self, pipeline: str, shown_by: str, shown: ShownEpoch) -> None:
        """From here on an epoch is known that the ledger lost when it went back in time."""

    def accepted(self, pipeline: str) -> Sequence[Accepted]:
        """What was accepted, in that order; of an epoch that was accepted again, what was accepted last."""

    def due(self, pipeline: str) -> Sequence[DueReceipt]:
        """What is still to be shown, epochs in order."""

    def unpublished(self, pipeline: str) -> Mapping[str, int]:
        """By sink, how many epochs it does not show yet; sinks that show all are left out."""

    def try_to_show(self, receipt: DueReceipt) -> bool:
        """Note that a publish begins with it; False where the sink shows it already."""

    def shown(self, receipt: DueReceipt, seconds: float | None, outbox: str | None) -> bool:
        """Note that the sink shows the epoch, which took so long, and empty its outbox; whether it was not noted."""

    def completed(self, pipeline: str, epoch_id: int) -> Mapping[str, Committable]:
        """By sink, what was committed of an epoch that every sink shows; nothing where one does not yet."""

    def unannounced(self, pipeline: str) -> Sequence[AnnouncedReceipt]:
        """Receipts of sinks that show their epoch, and that nobody is known to have heard of, the oldest first."""

    def announce(self, pipeline: str, receipts: Sequence[AnnouncedReceipt], run: Run) -> None:
        """Note which run's task tells them; whether it was heard is known later."""

    def acknowledge(self, pipeline: str, receipts: Sequence[AnnouncedReceipt]) -> None:
        """Note that these were told, and heard; nothing for those that nobody told."""


class Times(Protocol):
    """Event time, as epochs left it."""

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        """What the last committed epoch left, and when it is."""

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        """Whether a window that is open ends between two watermarks, the second included."""


class Transaction(Protocol):
    """One database transaction, seen from its sides."""

    @property
    def epochs(self) -> EpochRows:
        """Epochs and pipelines."""

    @property
    def chain(self) -> Chain:
        """Committed ranges."""

    @property
    def attempts(self) -> Attempts:
        """Attempts and staging tables."""

    @property
    def targets(self) -> Targets:
        """Target tables."""

    @property
    def quarantine(self) -> Quarantine:
        """Quarantined records."""

    @property
    def operators(self) -> Operators:
        """What operators did."""

    @property
    def history(self) -> History:
        """Settings and failures."""

    @property
    def states(self) -> States:
        """Keyed state."""

    @property
    def times(self) -> Times:
        """Event time."""

    @property
    def savepoints(self) -> Savepoints:
        """Savepoints."""

    @property
    def receipts(self) -> Receipts:
        """Which sinks show which epochs."""


class Ledger(Protocol):
    """Where transactions come from."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open one: committed where the block ends well, rolled back where it raises.

        Raises:
            LedgerUnavailableError: the connection was lost; a commit in flight may or may not have happened (INV-5).
        """

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        """A sink of a declaration that shows an epoch after its commit. No transaction may be open.

        Raises:
            ConfigurationError: nobody said how such sinks are reached from here.
            SinkError: it cannot be made here; others are not touched by that.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredOffset:
    """What a consumer group holds for a partition: an offset, and the epoch that wrote it, if it was a mirror."""

    offset: int
    generation: int | None = None
    epoch_id: int | None = None
    token: str | None = None
    """Of the attempt that the epoch was committed by; None where a version wrote it that kept none."""


class OffsetSource(Protocol):
    """Kafka, as far as planning needs it. Reads no record."""

    def look(self, source: KafkaSource) -> SourceView:
        """Partitions, offsets, topic ids and leader epochs of the topics that the source matches now.

        Raises:
            SourceUnavailableError: Kafka does not answer, or a partition has no leader.
            SourceError: a topic that the declaration names does not exist.
        """

    def offsets_at(self, partitions: Sequence[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int | None]:
        """Per partition the first offset whose timestamp is at or after the moment.

        None where there is none below the last stable offset. A moment has the resolution of Kafka's timestamps:
        what is finer than a millisecond is rounded up, so that no earlier record is taken in.
        """

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Per partition the offset up to which its log goes back to leaders of this epoch or an earlier one.

        None where the log knows no leader of this epoch or a later one, so that it cannot be the log in which the epoch
        was seen. A head beyond the answer means that the log was truncated below it (trap 11).
        """

    def mirrored(self, group: str) -> Mapping[tuple[str, int], MirroredOffset]:
        """What the consumer group holds, per topic and partition."""

    def mirror(
        self, group: str, heads: Sequence[Head], generation: int, epoch_id: int, token: str | None = None
    ) -> None:
        """Write the heads to the consumer group, for monitors (S5, S11), with the newest epoch and its token."""

    def forget(self, group: str) -> None:
        """Delete the consumer group, which nobody mirrors into any more; nothing where there is none.

        Raises:
            SourceUnavailableError: Kafka does not answer.
            SourceError: Kafka refuses, because somebody consumes with the group.
        """
