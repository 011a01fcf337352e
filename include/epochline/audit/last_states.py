"""What targets should hold that keep no row per record and epoch, over all committed epochs: compared at the end.

These are upsert targets (the last record of each key), add targets (its sums), replace targets (the newest epoch's
rows), append targets without lineage (all rows), and the states of a transform. They are known only as a whole: from
the records of every epoch, those of mode replace from the newest one. Whatever is missing of the records, or was
accepted by an operator, leaves the target unjudged, and is said.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from psycopg2 import sql

from epochline.audit.counted_rows import CountedDifference, CountedRows
from epochline.audit.counted_statement import Comparison, Identity
from epochline.audit.findings import Difference
from epochline.audit.recorded import RecordedEpoch, RecordedRange, compared_at_the_end, inexact
from epochline.audit.session import AuditSession
from epochline.declare.columns import STAGED_LINEAGE
from epochline.declare.names import deleted_keys_table, order_column
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.statements import run, where
from epochline.postgres.targets.application import order_of
from epochline.postgres.targets.columns import TargetColumn, columns_of
from epochline.protocol.staging import StagedTable

SAMPLE = 1000
"""The most differences of a target that are named."""


class LastStates:
    """Collects the rows of all epochs for such targets, and compares them at the end.

    ``first`` and ``last`` are whether the audit begins at the first epoch, and ends at the newest one.
    """

    def __init__(
        self, connection: AuditSession, declared: Pipeline, epochs: Sequence[RecordedEpoch],
        tables: Sequence[StagedTable], *, first: bool, last: bool,
    ) -> None:  # fmt: skip
        self._connection, self._declared, self._epochs = connection, declared, epochs
        self._committed = self._last_committed()
        self._first, self._last = first, last
        self.why_not: dict[str, str] = {}
        """By target, why its state cannot be told."""
        self._rows: dict[str, CountedRows] = {}
        self._kept: dict[str, object] = {}
        states = declared.states if declared.is_transformed else ()
        self._sinks = {sink.table: sink for sink in (*declared.targets, *states) if compared_at_the_end(sink)}
        self._ranges: list[tuple[RecordedRange, int]] = []
        for number, sink in enumerate(self._sinks.values()):
            with self._connection.snapshot():
                target = columns_of(self._connection, sink.table)
            why = self._unknown(sink, target)
            if why is not None:
                self.why_not[sink.table] = why
                continue
            staged = next(table for table in tables if table.sink == sink.table)
            self._kept[sink.table] = _rules(sink, staged)
            self._begin(sink, target, dict(staged.columns), number)

    def _unknown(self, sink: PostgresTable, target: dict[str, TargetColumn]) -> str | None:
        """Why the state of a target cannot be told before any record is read."""
        if sink.mode == "replace" and not self._last:
            return "its rows are the newest epoch's; let --epochs end there"
        if sink.mode != "replace":
            if not (self._first and self._last):
                return "a state is of all epochs; leave --epochs out"
            if sink.keep_unavailable:
                return "keep_unavailable keeps values of earlier records"
            if len({epoch.generation for epoch in self._epochs}) > 1:
                return "epochs of an earlier generation left rows"
        if not target:
            return "the table is gone"
        with self._connection.snapshot():
            claim = run(
                self._connection, "claimed_relation", **where(sink.table), pipeline=self._declared.name,
                deleted_keys=deleted_keys_table(self._declared.name, sink.table),
            ).one_or_none()  # fmt: skip
            since = self._epochs[-1].epoch_id if sink.mode == "replace" else 1
            erased = run(
                self._connection, "erased_without_place", pipeline=self._declared.name, sink=sink.table, since=since
            ).scalar_one_or_none()
        wanted = self._epochs[-1].targets.get(sink.table, {})
        altered = sorted(name for name, kind in wanted.items() if name not in target or target[name].kind != kind)
        if altered:
            return f"the table's columns changed: {', '.join(altered)}"
        if claim is not None and claim.accepted_epoch >= since:
            return f"an operator accepted the table as it was after epoch {claim.accepted_epoch}"
        return None if erased is None else f"rows that name no record were {erased}"

    def _begin(
        self, sink: PostgresTable, target: dict[str, TargetColumn], columns: dict[str, str], number: int
    ) -> None:
        wanted = self._epochs[-1].targets[sink.table]
        compared = [name for name in wanted if name not in inexact(self._declared, sink, wanted)]
        columns["_epoch"] = "bigint"
        order = order_of(sink)
        if not {order_column(name) for name in sink.order_by} <= target.keys():
            order.insert(0, "_epoch")  # the target cannot compare them, so that a later epoch's row stands
        elif not sink.lineage or sink.aggregated:  # of equal declared orders, the later epoch's row stands
            order.insert(len(sink.order_by), "_epoch")
        # A row that was there before the first epoch names none.
        within = sql.SQL("t._epoch IS NOT NULL" if sink.mode == "upsert" else "true")
        how = Comparison(
            sink, target, compared, _identity(sink, compared), number, order if sink.mode == "upsert" else None,
            within=within if sink.carried_lineage or sink.mode in ("append", "replace") else None,
            located=STAGED_LINEAGE.keys() <= columns.keys(),
        )  # fmt: skip
        rows = CountedRows(self._connection, sink, target, columns, how)
        rows.prepare(())
        self._rows[sink.table] = rows

    @property
    def sinks(self) -> frozenset[str]:
        """The targets whose rows are collected."""
        return frozenset(self._rows.keys() - self.why_not.keys())

    def follow(self, declared: Pipeline, tables: Sequence[StagedTable], why_not: str | None) -> None:
        """Give up targets that a group of epochs wrote otherwise than the newest one."""
        for sink in self._of_all():
            then = next((table for table in tables if table.sink == sink), None)
            was = next((target for target in (*declared.targets, *declared.states) if target.table == sink), None)
            if why_not is not None:
                self.why_not[sink] = why_not
            elif was is None or then is None or _rules(was, then) != self._kept[sink]:
                self.why_not[sink] = "epochs of another declaration wrote it otherwise"

    def _of_all(self, epoch_id: int | None = None) -> Iterator[str]:
        """The targets that depend on an epoch: those of mode replace on the newest one alone."""
        newest = epoch_id == self._epochs[-1].epoch_id
        yield from (sink for sink in self.sinks if newest or self._sinks[sink].mode != "replace")

    def add(self, sink: str, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add rows of an epoch."""
        if sink in self._of_all(epoch_id):
            epochs = pa.repeat(pa.scalar(epoch_id, pa.int64()), rows.num_rows)
            self._rows[sink].add(rows.append_column("_epoch", epochs))

    def read(self, epoch_id: int, planned: RecordedRange, *, whole: bool) -> None:
        """Note a range that was read; ``whole`` is whether all of its records were."""
        self._ranges.append((planned, epoch_id))
        if not whole:
            self.leave_out(epoch_id, f"{planned.topic}-{planned.partition} is not held from its first record")

    def leave_out(self, epoch_id: int, why: str) -> None:
        """Give up every target that depends on an epoch."""
        for sink in list(self._of_all(epoch_id)):
            self.why_not[sink] = why

    def differences(self) -> Iterator[Difference]:
        """Compare; yield the differences, each with the epoch that read its record, as far as it is known."""
        for sink in sorted(self.sinks):
            self._rows[sink].compare()
            if self._last_committed() != self._committed:
                self.why_not[sink] = "an epoch was committed meanwhile; repeat the audit while the pipeline is paused"
                continue
            adopted = self._sinks[sink].columns is None and self._sinks[sink].mode == "append"
            surplus = 0
            for found in self._rows[sink].told(SAMPLE, self._epoch_of):
                if adopted and found.kind in ("extra", "doubled"):
                    surplus += 1
                else:
                    yield found
            if surplus:
                self.why_not[sink] = "it has rows of no record, which may have been there before the pipeline"

    def notes(self) -> Iterator[str]:
        """What was not compared, and why."""
        for name, sink in self._sinks.items():
            what = "last states" if sink.mode in ("upsert", "add") else "rows"
            if name in self.why_not:
                yield f"{name}: {what} not compared: {self.why_not[name]}"
            elif left_out := inexact(self._declared, sink, self._epochs[-1].targets.get(name, {})):
                columns = ", ".join(sorted(left_out))
                self.why_not[name] = f"{columns}: floating-point numbers of a transform"
                yield f"{name}: values not compared: {self.why_not[name]}"

    def _last_committed(self) -> object:
        with self._connection.snapshot():
            return run(self._connection, "last_committed", pipeline=self._declared.name).scalar_one()

    def _epoch_of(self, found: CountedDifference) -> int | None:
        for planned, epoch_id in self._ranges:
            here = (planned.topic, planned.partition) == (found.topic, found.partition)
            if here and found.offset is not None and planned.range.start <= found.offset < planned.range.until:
                return epoch_id
        return None


def _identity(sink: PostgresTable, compared: Sequence[str]) -> Identity:
    """The key of a row; without one, its epoch and place as far as the table has them; without a place, all values."""
    names = list(sink.key)
    if not names:
        names = [name for name in ("_epoch", *STAGED_LINEAGE) if name in sink.carried_lineage]
        if "_offset" not in names:
            names += compared
    return Identity(columns={name: name for name in names}, by="key")


def _rules(sink: PostgresTable, staged: StagedTable) -> object:
    """What makes rows of a target comparable from epoch to epoch."""
    named = (sink.mode, sink.key, sink.order_by, sink.measures, sink.on_tombstone, sink.lineage, sink.select)
    return *named, sink.repeats, dict(staged.columns)
