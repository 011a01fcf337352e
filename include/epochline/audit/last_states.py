"""What upsert and add targets should hold: the last record of each key, or its sums, over all committed epochs.

A state is known only as a whole: from the records of every epoch. Whatever is missing of them, or was accepted by an
operator, leaves the target unjudged, and is said.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from epochline.audit.counted_rows import CountedDifference, CountedRows
from epochline.audit.counted_statement import Comparison, Identity
from epochline.audit.findings import Difference
from epochline.audit.recorded import RecordedEpoch, RecordedRange
from epochline.audit.rows import ExpectedRows
from epochline.audit.session import AuditSession
from epochline.declare.names import deleted_keys_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.statements import run, where
from epochline.postgres.targets.application import order_of
from epochline.postgres.targets.columns import columns_of
from epochline.protocol.staging import StagedTable

SAMPLE = 1000
"""The most differences of a target that are named."""


class LastStates:
    """Collects the rows of all epochs for the targets of mode upsert and add, and compares them at the end."""

    def __init__(
        self, connection: AuditSession, declared: Pipeline, epochs: Sequence[RecordedEpoch],
        tables: Sequence[StagedTable], *, whole: bool,
    ) -> None:  # fmt: skip
        self._connection, self._declared, self._epochs = connection, declared, epochs
        self.why_not: dict[str, str] = {}
        """By target, why its state cannot be told."""
        self._rows: dict[str, CountedRows] = {}
        self._kept: dict[str, object] = {}
        self._sinks = {sink.table: sink for sink in declared.targets if sink.mode in ("upsert", "add")}
        self._ranges: list[tuple[RecordedRange, int]] = []
        for number, sink in enumerate(self._sinks.values()):
            why = self._unknown(sink, whole=whole)
            if why is not None:
                self.why_not[sink.table] = why
                continue
            staged = next(table for table in tables if table.sink == sink.table)
            self._kept[sink.table] = _rules(sink, staged)
            self._begin(sink, dict(staged.columns), number)

    def _unknown(self, sink: PostgresTable, *, whole: bool) -> str | None:
        """Why the state of a target cannot be told before any record is read."""
        if self._declared.is_transformed:
            return "a transform made the rows"
        if not whole:
            return "a state is of all epochs; leave --epochs out"
        if sink.keep_unavailable:
            return "keep_unavailable keeps values of earlier records"
        if len({epoch.generation for epoch in self._epochs}) > 1:
            return "epochs of an earlier generation left rows"
        with self._connection.snapshot():
            columns = columns_of(self._connection, sink.table)
            claim = run(
                self._connection, "claimed_relation", **where(sink.table), pipeline=self._declared.name,
                deleted_keys=deleted_keys_table(self._declared.name, sink.table),
            ).one_or_none()  # fmt: skip
        if not columns:
            return "the table is gone"
        wanted = self._epochs[-1].targets.get(sink.table, {})
        altered = sorted(name for name, kind in wanted.items() if name not in columns or columns[name].kind != kind)
        if altered:
            return f"the table's columns changed: {', '.join(altered)}"
        if claim is not None and claim.accepted_epoch:
            return f"an operator accepted the table as it was after epoch {claim.accepted_epoch}"
        return None

    def _begin(self, sink: PostgresTable, columns: dict[str, str], number: int) -> None:
        with self._connection.snapshot():
            target = columns_of(self._connection, sink.table)
        compared = self._epochs[-1].targets[sink.table]
        order = order_of(sink)
        if not sink.lineage:  # of equal declared orders, the later epoch's row stands
            order.insert(len(sink.order_by), "_epoch")
        how = Comparison(
            sink, target, compared, Identity(columns={name: name for name in sink.key}, by="key"), number,
            order if sink.mode == "upsert" else None, whole=sink.mode == "upsert" and bool(sink.carried_lineage),
        )  # fmt: skip
        rows = CountedRows(self._connection, sink, target, {**columns, "_epoch": "bigint"}, how)
        rows.prepare(())
        self._rows[sink.table] = rows

    @property
    def sinks(self) -> frozenset[str]:
        """The targets whose rows are collected."""
        return frozenset(self._rows.keys() - self.why_not.keys())

    def follow(self, declared: Pipeline, tables: Sequence[StagedTable], why_not: str | None) -> None:
        """Give up targets that a group of epochs wrote otherwise than the newest one."""
        for sink in self.sinks:
            then = next((table for table in tables if table.sink == sink), None)
            was = next((target for target in declared.targets if target.table == sink), None)
            if why_not is not None:
                self.why_not[sink] = why_not
            elif was is None or then is None or _rules(was, then) != self._kept[sink]:
                self.why_not[sink] = "epochs of another declaration wrote it otherwise"

    def add(self, sink: str, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add rows of an epoch."""
        epochs = pa.repeat(pa.scalar(epoch_id, pa.int64()), rows.num_rows)
        self._rows[sink].add(rows.append_column("_epoch", epochs))

    def read(self, epoch_id: int, planned: RecordedRange, *, whole: bool) -> None:
        """Note a range that was read; ``whole`` is whether all of its records were."""
        self._ranges.append((planned, epoch_id))
        if not whole:
            self.leave_out(f"{planned.topic}-{planned.partition} is not held from its first record")

    def leave_out(self, why: str) -> None:
        """Give up every target."""
        for sink in self.sinks:
            self.why_not[sink] = why

    def differences(self) -> Iterator[Difference]:
        """Compare; yield the differences, each with the epoch that read its record, as far as it is known."""
        for sink in sorted(self.sinks):
            self._rows[sink].compare()
            more = sum(self._rows[sink].totals().values())
            for found in self._rows[sink].sample(SAMPLE):
                said = ", ".join(found.columns) or None
                if found.topic is None:
                    said = f"{found.number} rows{f': {said}' if said else ''}"
                yield Difference(
                    epoch_id=self._epoch_of(found), where=sink, kind=found.kind, topic=found.topic,
                    partition=found.partition, offset=found.offset, row=found.row, said=said,
                )  # fmt: skip
                more -= found.number
            if more:
                yield Difference(epoch_id=None, where=sink, kind="count", said=f"{more} further rows differ")

    def _epoch_of(self, found: CountedDifference) -> int | None:
        for planned, epoch_id in self._ranges:
            here = (planned.topic, planned.partition) == (found.topic, found.partition)
            if here and found.offset is not None and planned.range.start <= found.offset < planned.range.until:
                return epoch_id
        return None


def _rules(sink: PostgresTable, staged: StagedTable) -> object:
    """What makes rows of a target comparable from epoch to epoch."""
    named = (sink.mode, sink.key, sink.order_by, sink.measures, sink.on_tombstone, sink.lineage, sink.select)
    return *named, dict(staged.columns)


class ExpectedAndStates:
    """Takes rows as `ExpectedRows` does, and passes those of a state on."""

    def __init__(self, expected: ExpectedRows, states: LastStates) -> None:
        self._expected, self._states = expected, states
        self.set_aside = expected.set_aside
        self.leave_out = expected.leave_out

    @property
    def sinks(self) -> frozenset[str]:
        """The targets whose rows are compared."""
        return self._expected.sinks | self._states.sinks

    def add(self, sink: str, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add rows that the target should have of an epoch."""
        (self._states if sink in self._states.sinks else self._expected).add(sink, epoch_id, rows)
