"""Target tables and the staging tables that feed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.protocol.epoch import Epoch
from epochline.protocol.refused import RefusedRow
from epochline.protocol.staging import StagedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a look at a staging table found before its seal.

    Args:
        refused: rows that the target would not take.
        untried: the target has rules that only applying the rows shows.
    """

    refused: Sequence[RefusedRow] = ()
    untried: bool = False


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
