"""Targets and the staging tables that feed them, the quarantine, and keyed state with its event times."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from epochline.declare.event_time import TimeStanding
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateStanding
from epochline.declare.table import PostgresTable
from epochline.protocol.bounds import Measured
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import TopicPartition
from epochline.protocol.refused import RefusedRow
from epochline.protocol.staging import StagedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a staging table holds."""

    rows: int
    digest: str
    """A sum over its rows; other values give another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What was found in a staging table before its seal."""

    refused: Sequence[RefusedRow] = ()
    untried: bool = False
    """Only a trial checks some rules of the target."""
    reads_others: bool = False
    """Code of the target runs in the trial and may need the epoch's rows of every other target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How the targets that exist fit a declaration."""

    problems: Sequence[str] = ()
    """Why a plan would refuse targets."""
    notes: Sequence[str] = ()
    """Columns of the record that go nowhere while a table has columns that nothing fills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """One row that differs between a replay and what was committed."""

    kind: str
    """``inserted``, ``deleted`` or ``changed``."""
    place: tuple[str, int, int, int]
    """Topic, partition, offset and number of the row."""
    before: Mapping[str, str | None]
    after: Mapping[str, str | None]
    """Values by column, as text; for a changed row only those that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDifference:
    """How a replay's rows differ from those that were committed to a target."""

    table: str
    same: int
    inserted: int
    deleted: int
    changed: int
    samples: Sequence[RowDifference]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserted:
    """What became of the rows staged for a target that upserts or skips repeats. Each is counted once (INV-9)."""

    inserted: int
    updated: int
    deleted: int
    superseded: int
    """Older than another row of their key, in the same epoch or the table."""
    unchanged: int
    """The table says the same already: unchanged state, a delete of a missing key, or a skipped repeat of a key."""

    @property
    def total(self) -> int:
        """Number of staged rows."""
        return self.inserted + self.updated + self.deleted + self.superseded + self.unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an epoch did to a target."""

    rows: int
    """Target rows written or deleted."""
    upserted: Upserted | None = None
    """For an upsert, or a target that skips repeats, what became of its staged rows."""

    @property
    def accounted(self) -> int:
        """Number of staged rows whose outcome is known."""
        return self.rows if self.upserted is None else self.upserted.total


class Targets(Protocol):
    """Target tables and the staging tables that feed them."""

    def inspect(self, pipeline: Pipeline) -> Mapping[str, Mapping[str, str]]:
        """Per sink, the names and types of the target's columns that it fills, in order.

        Raises:
            TargetError: a table is missing, lacks what epochs wrote, or does not fit; or no order of writing does.
        """

    def compare(self, pipeline: Pipeline) -> Fit:
        """Compare the targets that exist with the declaration. Changes nothing."""

    def refuse_foreign(self, pipeline: Pipeline) -> None:
        """Check whose the targets are. Changes nothing.

        Raises:
            TargetError: another pipeline writes one of them or a table that shares rows with it, or wrote rows of a
                table that is nobody's; or another program made an append target whose columns are declared.
        """

    def claim(self, pipeline: Pipeline) -> None:
        """Record that this pipeline writes its targets, and which tables they are.

        Raises:
            TargetError: as for `refuse_foreign`; or a target is not the table that epochs wrote.
        """

    def lost(self, pipeline: Pipeline) -> Mapping[str, str]:
        """Per target that lacks rows of epochs, what shows it, as the end of a sentence that begins with its name."""

    def accept(self, pipeline: Pipeline, epoch_id: int) -> None:
        """Take each target that is `lost` as it is for what the epochs up to this one left in it."""

    def claimed(self, pipeline: str) -> Sequence[str]:
        """The tables that the pipeline writes, as ``schema.table``, sorted."""

    def keeps_order(self, pipeline: Pipeline) -> Mapping[str, bool]:
        """Per upsert sink, whether its table keeps its order columns, so that older records are recognised."""

    def restart_order(self, pipeline: Pipeline) -> None:
        """Order all existing rows before those of the next generation, whose offsets start over."""

    def create(self, pipeline: Pipeline) -> Sequence[str]:
        """Create the declared tables that do not exist. Returns their names.

        Raises:
            TargetError: an append target exists, but not as it would be created, or a target lacks what epochs wrote.
                No table of the pipeline is created.
        """

    def free_connections(self) -> int:
        """How many more sessions the server accepts now."""

    def count(self, staged: StagedTable) -> int | None:
        """Number of rows in a staging table; None if the table is missing."""

    def held(self, staged: StagedTable) -> Held | None:
        """The number and the digest of the rows in a staging table, by reading it; None if the table is missing."""

    def prepare(self, pipeline: Pipeline, sink: PostgresTable, staged: StagedTable, epoch: Epoch) -> Prepared:
        """At the seal: index, analyze, and find rows that the target would refuse.

        Raises:
            RowsRefusedError: the commit would fail for any rows.
        """

    def measure(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Measured:
        """At the seal: what the bounds of the declaration need to know of these targets' staged rows. Changes nothing.

        Raises:
            MeasureError: a query failed, took too long, or gave something else than one value.
        """

    def try_out(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Sequence[RefusedRow]:
        """At the seal: apply staging to these targets and roll back. Returns the refused rows.

        Raises:
            RowsRefusedError: the rows are refused, but not because of any single row.
        """

    def apply(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Mapping[str, Applied]:
        """In the commit: apply staging tables to their targets. Returns what happened to each, by table.

        Foreign keys between the targets decide the order (ADR 0041).

        Raises:
            TargetError: rows were dropped, or the counts of an upsert do not add up to its staged rows.
        """

    def keep_quarantine(self, staged: StagedTable, epoch: Epoch) -> int:
        """In the commit: move the staged quarantine into the ledger. Returns the number of records."""

    def cannot_undo(self, pipeline: Pipeline, sink: PostgresTable, epochs: Sequence[int]) -> str | None:
        """Why the rows of the pipeline's newest epochs cannot be removed from a target; None if they can."""

    def difference(self, sink: PostgresTable, staged: StagedTable, epoch_id: int, samples: int) -> TableDifference:
        """How staging differs from the rows that an epoch wrote into an append target with lineage."""

    def undo(self, pipeline: Pipeline, epochs: Sequence[int]) -> Mapping[str, int]:
        """Remove the rows of these epochs from every target and put back what they replaced; count them by target.

        Raises:
            TargetError: a row does not go or come back, or rows of another table would be deleted or changed with it.
        """

    def account(self) -> None:
        """Check that the targets hold what `apply` and `undo` made of them (INV-9), before staging is dropped.

        Raises:
            TargetError: a trigger, a rule or a cascade changed what was written.
        """

    def allow_time(self, statement: timedelta) -> None:
        """Raise the statement time-out for the rest of the transaction, if it is shorter."""

    def limit_time(self, statement: timedelta, lock: timedelta) -> None:
        """Set statement and lock time-outs for the rest of the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Quarantined records of a generation that were not requeued and match every field that is set."""

    generation: int
    epoch_id: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    reason: str | None = None
    """An SQL LIKE pattern."""


Claims = Mapping[tuple[str, int], int]
"""Numbers of quarantined records per topic and partition."""


class Quarantine(Protocol):
    """Quarantined records that a requeue epoch reads again, each once."""

    def selected(self, pipeline: str, selection: Selection) -> Claims:
        """How many records match the selection now."""

    def claim_records(self, epoch: Epoch, selection: Selection) -> int:
        """Assign the selected records to the epoch, permanently (INV-3). Returns their number."""

    def claims(self, epoch: Epoch) -> Claims:
        """How many records the epoch reads."""

    def claims_are_free(self, epoch: Epoch) -> bool:
        """Whether no other epoch has requeued any of the epoch's records."""

    def requeue(self, staged: StagedTable, epoch: Epoch) -> tuple[int, int]:
        """In the commit: mark records requeued, except those that failed again; returns how many of each there were."""


class States(Protocol):
    """Keyed state, and event time: what its tables hold, and what epochs left."""

    def standings(self, pipeline: Pipeline, *, read: bool = False) -> Mapping[str, StateStanding]:
        """Content of each state table now, and as an epoch left it. Locks the tables until the transaction ends.

        With ``read``, the tables are read whole, which also finds rows that changed past their triggers on the disk.
        """

    def last_committed(self, pipeline: str) -> int | None:
        """Id of the pipeline's last committed epoch; None before the first commit."""

    def leave(self, pipeline: Pipeline, epoch_id: int) -> None:
        """Record the present content of every state table as what the epoch left."""

    def event_times(self, pipeline: Pipeline) -> TimeStanding:
        """The event times that the last committed epoch left, and the present time."""

    def keep_unread(self, epoch: Epoch, partitions: Collection[TopicPartition]) -> None:
        """Keep the partitions that have records beyond the epoch's ranges. An earlier plan's are forgotten."""

    def closes(self, pipeline: Pipeline, before: datetime | None, after: datetime) -> bool:
        """Whether an open window ends after the first watermark and not after the second."""
