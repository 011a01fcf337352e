"""Reads committed epochs from the ledger for an audit."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from epochline.audit.findings import Difference, SinkResult
from epochline.audit.session import AuditSession
from epochline.declare.external import Files
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateStanding
from epochline.declare.table import PostgresTable
from epochline.declare.topic import KafkaTopic
from epochline.postgres.queries.statements import Row, Rows
from epochline.postgres.queries.statements import run as execute
from epochline.postgres.targets.catalog import find_target
from epochline.postgres.targets.states import PostgresStates, state_content
from epochline.protocol.balances import NOTHING_SEEN, PartitionCounts
from epochline.protocol.offsets import OffsetRange

SetAside = frozenset[tuple[str, int, int]]
"""Places of records: topic, partition, offset."""

_AT_ONCE = 1_000_000
_STATE = "the last state of each key is compared after the last epoch"
_WHOLE = "rows are compared after the last epoch"
_FEW = 100  # a record may have many megabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEpoch:
    """A committed epoch with its declaration, and the columns of its targets at its plan."""

    epoch_id: int
    kind: str
    generation: int
    superseded: bool
    declaration_hash: str
    offsets: int
    targets: Mapping[str, Mapping[str, str]]
    watermark: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRange:
    """A range of a committed epoch and its counts."""

    topic: str
    topic_id: str
    partition: int
    range: OffsetRange
    counts: PartitionCounts
    replaced_from: int | None = None
    """The offset from which a truncated log may hold other records than the epoch read; None if it was not adopted."""


class Erased:
    """What was erased of some epochs, by rows of the statement ``audited_erasures``."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._places = {(row.sink, row.topic, row.partition, row.offset) for row in rows}

    def explains(self, where: str, kind: str, place: tuple[str | None, int | None, int | None]) -> bool:
        """Whether a difference is one: a row that is missing, bytes that changed, or the row of a requeued record."""
        requeued = kind == "extra" and where != "quarantine" and ("requeue", *place) in self._places
        return requeued or (
            kind == ("changed" if where == "quarantine" else "missing") and (where, *place) in self._places
        )

    def requeued(self, epoch_id: int) -> bool:
        """Whether records that an epoch requeued were erased since."""
        return any((row.epoch_id, row.sink) == (epoch_id, "requeue") for row in self._rows)

    def accounts_for(self, found: Difference) -> bool:
        """As `explains`; rows of an epoch that name no record may be those that were erased."""
        if found.offset is not None:
            return self.explains(found.where, found.kind, (found.topic, found.partition, found.offset))
        lost = (found.epoch_id, found.where, None)
        return found.kind == "missing" and any((row.epoch_id, row.sink, row.offset) == lost for row in self._rows)

    def rows(self, epoch_id: int, sink: str) -> int:
        """The number of rows of an epoch that were erased from a target."""
        return sum(row.rows for row in self._rows if (row.epoch_id, row.sink) == (epoch_id, sink))

    def notes(self) -> Iterator[tuple[int, str]]:
        """For each epoch, what was erased, when, by whom and why."""
        numbers: Counter[tuple[int, str, str]] = Counter()
        for row in self._rows:
            numbers[row.epoch_id, row.sink, row.said] += row.rows
        for (epoch_id, where, said), number in numbers.items():
            yield epoch_id, f"{where}: {number} not compared: {said}"


class Recorded:
    """The ledger's records of one pipeline."""

    def __init__(self, connection: AuditSession, pipeline: str) -> None:
        self._connection = connection
        self._pipeline = pipeline

    def _ask(self, statement: str, epoch: RecordedEpoch, **values: Any) -> Rows:
        return execute(self._connection, statement, pipeline=self._pipeline, epoch_id=epoch.epoch_id, **values)

    def epochs(self, first: int, last: int) -> list[RecordedEpoch]:
        """The committed epochs with ids in ``[first, last]``, in order."""
        rows = execute(self._connection, "audited_epochs", pipeline=self._pipeline, first=first, last=last)
        return [
            RecordedEpoch(
                **row | {"targets": {sink: dict(columns) for sink, columns in (row["targets"] or {}).items()}}
            )
            for row in map(dict, rows.mappings())
        ]

    def contradictions(self, first: int, last: int) -> Rows:
        """Where the ledger's own records of these epochs, or of the whole chain, contradict each other."""
        return execute(self._connection, "audited_ledger", pipeline=self._pipeline, first=first, last=last)

    def declaration(self, epoch: RecordedEpoch) -> Pipeline:
        """The pipeline's declaration in this epoch."""
        return Pipeline.from_stored(json.dumps(self._ask("declaration_of_epoch", epoch).scalar_one()))

    def ranges(self, epoch: RecordedEpoch) -> list[RecordedRange]:
        """The epoch's ranges by topic and partition; a requeue has none."""
        return [
            RecordedRange(
                topic=row.topic,
                topic_id=row.topic_id,
                partition=row.partition,
                range=OffsetRange(start=row.start_offset, until=row.until_offset),
                counts=replace(
                    NOTHING_SEEN,
                    received=row.records_read or 0,
                    passed=row.records_passed or 0,
                    skipped=row.records_skipped or 0,
                    quarantined=row.records_quarantined or 0,
                    digest=int(row.source_digest or 0),
                ),
                replaced_from=row.replaced_from,
            )
            for row in self._ask("audited_ranges", epoch)
        ]

    def set_aside(self, epoch: RecordedEpoch) -> SetAside:
        """The records that an epoch put into the quarantine, requeued ones included."""
        return frozenset((row.topic, row.partition, row.offset) for row in self._ask("audited_quarantine", epoch))

    def erased(self, epochs: Sequence[RecordedEpoch]) -> Erased:
        """What was erased of these epochs."""
        ids = [epoch.epoch_id for epoch in epochs]
        return Erased(execute(self._connection, "audited_erasures", pipeline=self._pipeline, epochs=ids))

    def claims(self, epoch: RecordedEpoch) -> int:
        """How many quarantined records a requeue epoch claimed."""
        return sum(row.records for row in self._ask("requeue_claims", epoch))

    def claimed(self, epoch: RecordedEpoch) -> Iterator[list[Row]]:
        """The records that a requeue epoch claimed, in pages, each read in its own transaction."""
        after: tuple[str, int, int] = ("", -1, -1)
        while True:
            with self._connection.snapshot():
                place = {"topic_id": after[0], "partition": after[1], "offset": after[2]}
                page = self._ask("audited_claimed_records", epoch, at_most=_FEW, **place)
            if not page:
                return
            yield page
            after = (page[-1].topic_id, page[-1].partition, page[-1].offset)

    def sealed_rows(self, epoch: RecordedEpoch) -> dict[str, int]:
        """The number of sealed rows that are in the target, by sink: without skipped repeats."""
        rows = execute(self._connection, "rows_sealed", pipeline=self._pipeline, epochs=[epoch.epoch_id])
        return {row.sink: row.rows for row in rows}

    def watermark_before(self, epoch: RecordedEpoch) -> datetime | None:
        """The watermark that the epoch before it left."""
        rows = execute(self._connection, "watermark_left", pipeline=self._pipeline, before=epoch.epoch_id)
        left: datetime | None = rows.scalar_one_or_none()
        return left

    def change_of_state(self) -> str | None:
        """The action of an operator that changed state tables, if there was one."""
        row = execute(self._connection, "changes_of_state", pipeline=self._pipeline).one_or_none()
        if row is None:
            return None
        return row.action if row.epoch_id is None else f"{row.action}, epoch {row.epoch_id}"

    def state(self, table: str) -> StateStanding:
        """What a state table holds, read whole, and what the last epoch left in it; in the caller's snapshot."""
        standing = PostgresStates(self._connection).left(self._pipeline, table)
        return replace(standing, now=state_content(self._connection, table))

    def declared_losses(self) -> list[str]:
        """Descriptions of the offsets that an operator declared lost."""
        rows = execute(self._connection, "declared_losses", pipeline=self._pipeline)
        return [
            f"{row.topic}-{row.partition}: offsets [{row.start_offset}, {row.until_offset}) were declared lost"
            f" (generation {row.generation})"
            for row in rows
        ]


def together(epochs: Sequence[RecordedEpoch]) -> Iterator[list[RecordedEpoch]]:
    """Group neighbouring epochs whose rows can be compared with one query per target.

    They ran the same declaration on targets with the same columns. A group has at most a million offsets, unless a
    single epoch has more.
    """
    group: list[RecordedEpoch] = []
    for epoch in epochs:
        offsets = sum(earlier.offsets for earlier in group) + epoch.offsets
        if group and (_kind(group[0]) != _kind(epoch) or offsets > _AT_ONCE):
            yield group
            group = []
        group.append(epoch)
    if group:
        yield group


def _kind(epoch: RecordedEpoch) -> tuple[object, ...]:
    return epoch.declaration_hash, epoch.generation, epoch.kind == "requeue", epoch.targets


def comparable(connection: AuditSession, declared: Pipeline, sink: PostgresTable, epoch: RecordedEpoch) -> SinkResult:
    """Tell whether the rows of a target can be compared by value; ``said`` is None if they can."""
    why = None
    if compared_at_the_end(sink):
        return SinkResult(sink=sink.table, said=_STATE if sink.mode in ("upsert", "add") else _WHOLE)
    if declared.is_transformed and sink.repeats == "skip":
        why = "nothing tells which rows of a transform repeats='skip' left out"
    elif (target := find_target(connection, sink.table)) is None:
        why = "the table is gone"
    else:
        wanted = {**epoch.targets.get(sink.table, {}), **sink.added_columns}
        now = {name: column.kind for name, column in target.columns.items()}
        altered = sorted(name for name, kind in wanted.items() if now.get(name) != kind)
        if altered:
            why = f"since the epoch the table's columns changed: {', '.join(altered)}"
    return SinkResult(sink=sink.table, said=why and f"values not compared: {why}", judged=why is None)


def without_inexact(declared: Pipeline, sink: SinkResult, epoch: RecordedEpoch) -> SinkResult:
    """Say which columns of an append target of a transform are not compared although the others are."""
    columns: list[str] = []
    for target in (target for target in declared.targets if target.table == sink.sink):
        columns = sorted(inexact(declared, target, epoch.targets.get(sink.sink, {})))
    if sink.said is not None or not columns:
        return sink
    why = f"values not compared: {', '.join(columns)}: floating-point numbers of a transform"
    return replace(sink, said=why, judged=False)


def compared_at_the_end(sink: PostgresTable) -> bool:
    """Whether the rows of a target tell no epoch, or depend on other epochs, so that all are compared at once."""
    return sink.mode != "append" or not sink.lineage


def inexact(declared: Pipeline, sink: PostgresTable | KafkaTopic | Files, columns: Mapping[str, str]) -> frozenset[str]:
    """The columns that may differ each time a transform runs: a sum of floats depends on the order of its terms."""
    if not (declared.is_transformed and sink.aggregated):
        return frozenset()
    kinds = {name: kind.removesuffix("[]") for name, kind in columns.items() if name not in getattr(sink, "key", ())}
    return frozenset(name for name, kind in kinds.items() if kind in ("real", "double precision"))
