"""The ledger's tables in the model: the fake that the contract suite holds against PostgreSQL, and its guards.

`tests.in_memory.ledger.FakeLedger` keeps the same promises as PostgreSQL (tests/contract runs over both). What a statement
of the product guards is asked from the statement's text, so that a mutant of the statement is a mutant of the model.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from epochline.declare.names import QUARANTINE
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import LedgerError, LockTimeoutError
from epochline.ports import Applied, DueReceipt, Manifest, PipelineRow
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.offsets import Head, OffsetRange, Origin, PlannedRange
from epochline.protocol.planning import SourceView
from epochline.protocol.sink import Committable, WrittenPart
from epochline.protocol.staging import StagedTable, StagingTicket
from tests.in_memory.attempts import FakeAttempts
from tests.in_memory.chain import FakeChain
from tests.in_memory.epochs import FakeEpochs
from tests.in_memory.kafka import FakeKafka
from tests.in_memory.ledger import FakeTransaction
from tests.in_memory.receipts import FakeReceipts
from tests.in_memory.rows import Rows, Side
from tests.in_memory.targets import FakeTargets
from tests.model.guards import Guards

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
NAME = "p"
"""The one pipeline of the model."""
STATE = "state"
"""The state table: each row says which epoch's state an epoch went on from, and which epoch that was."""

Read = tuple[int, int, int]
"""Partition, start, until."""
Reads = tuple[Read, ...]

_HOLDS_MORE = (SourceView, Manifest, Committable, WrittenPart, DueReceipt)
_PLAIN = (str, int, bool, type(None), PipelineRow, Epoch, Attempt, PlannedRange)
_UNCHANGING = frozenset({*_PLAIN, tuple, datetime, Pipeline, Manifest})


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


@cache
def _frozen(kind: type) -> bool:
    return kind not in _HOLDS_MORE and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def clone(value: Any) -> Any:
    """A copy of which nothing that can change is shared with the original."""
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is dict:
        return {key: one if type(one) in _UNCHANGING else clone(one) for key, one in value.items()}
    if kind is list:
        return [one if type(one) in _UNCHANGING else clone(one) for one in value]
    if kind is set:
        return set(value)
    if is_dataclass(kind) and not _frozen(kind):
        return kind(**{name: clone(getattr(value, name)) for name in _names(kind)})
    return value


def freeze(value: Any) -> Any:
    """A hashable value that is equal for equal contents."""
    kind = type(value)
    if kind in (dict, Counter):
        return tuple((key, freeze(one)) for key, one in value.items())
    if kind in (list, tuple):
        return tuple(freeze(one) for one in value)
    if kind is set:
        return frozenset(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Pipeline):
        return value.name, value.inputs[""].source.startup
    if isinstance(value, BaseException):
        return type(value).__name__, str(value)
    if is_dataclass(kind):
        if kind is StagedTable:
            return value.table
        if kind is StagingTicket:
            return value.attempt_id
        if _frozen(kind) and _hashable(value):
            return value
        return tuple(freeze(getattr(value, name)) for name in _names(kind))
    return value


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


class Violation(Exception):  # noqa: N818 - not an error of the model: what it looks for
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a transaction meets besides the tables: the log as it is now, tables that a writer holds, the guards."""

    kafka: FakeKafka
    open_tables: frozenset[int]
    """Attempts into whose staging a writer has copied rows in a transaction that is still open."""
    guards: Guards
    era: str = ""
    """Of the tokens that are made: what a ledger forgot when it was set back, it never gives again."""


class GuardedTransaction(FakeTransaction):
    """The fake's transaction; what a statement guards is as the statement's text says."""

    def __init__(self, rows: Rows, around: Surroundings) -> None:
        super().__init__(rows, lambda: NOW)
        self.around = around
        self.ended_sessions: list[int] = []
        self.epochs = GuardedEpochs(self)
        self.chain = GuardedChain(self)
        self.attempts = GuardedAttempts(self)
        self.targets = GuardedTargets(self)
        self.receipts = GuardedReceipts(self)

    # What a writer does, guarded as the statements of `epochline.postgres.ledger.parts` are.

    def accepts(self, attempt_id: int) -> bool:
        """Whether a statement on the attempt's row would find it live."""
        attempt, guards = self.rows.attempts[attempt_id].attempt, self.around.guards
        return not (attempt.fenced and guards.part_asks_fence) and not (attempt.sealed and guards.part_asks_seal)

    def has_staging(self, attempt_id: int) -> bool:
        """Whether a writer can still copy."""
        return all(staged.table in self.rows.staging for staged in self.rows.attempts[attempt_id].tables)

    def reads_of(self, attempt_id: int) -> tuple[Reads, int]:
        """What a job that starts now reads, and which epoch's state it finds."""
        attempt = self.rows.attempts[attempt_id].attempt
        ranges = self.epochs.ranges(self.rows.epochs[NAME, attempt.epoch_id])
        states: Any = self.rows.targets.get(STATE, ())
        reads = tuple((one.tp.partition, one.range.start, one.range.until) for one in ranges)
        return reads, max((epoch_id for _, epoch_id in states), default=0)

    def insert_part(self, attempt_id: int, read: Read, held: int | None) -> bool:
        """Commit one part: the records of a range; False where the statement finds no live row.

        The first one brings the state with it: which epoch's it was made from.
        """
        row = self.rows.attempts[attempt_id]
        if not self.accepts(attempt_id):
            row.fenced_writes = 1
            return False
        if row.attempt.fenced:
            raise Violation(f"INV-4: a part of {row.attempt} was accepted after it was fenced")
        if row.attempt.sealed:
            raise Violation(f"INV-6: a part of {row.attempt} was accepted after it was sealed")
        partition, start, until = read
        count = until - start
        topic = next(tp.topic for _, _, tp in self.rows.chains if tp.partition == partition)
        seen = PartitionCounts(
            received=count, passed=count, skipped=0, quarantined=0, first_offset=start, last_offset=until - 1, digest=1
        )
        new = [(partition, offset) for offset in range(start, until)]
        for staged in row.tables:
            mine: Any = {QUARANTINE: [], STATE: [] if held is None else [(held,)]}.get(staged.sink, new)
            self.rows.staging[staged.table] = sorted(self.rows.staging[staged.table] + mine)
            message = {(topic, partition): seen} if staged.sink == QUARANTINE else {}
            row.parts.append((Manifest(sink=staged.sink, write_id="w", parts=1, rows=len(mine)), message))
        row.parts.sort(key=str)
        return True

    def end_of(self, attempt_id: int, reads: Reads) -> bool:
        """Write manifests and end mark, as the driver counted; False where the attempt is not live."""
        row = self.rows.attempts[attempt_id]
        if not self.accepts(attempt_id):
            return False
        every = sum(until - start for _, start, until in reads)
        for staged in row.tables:
            rows = {QUARANTINE: 0, STATE: 1}.get(staged.sink, every)
            row.manifests[staged.sink] = Manifest(sink=staged.sink, write_id="w", parts=len(reads), rows=rows)
        row.attempt = replace(row.attempt, ended=True)
        return True


class Guarded(Side):
    _tx: GuardedTransaction


class GuardedChain(Guarded, FakeChain):
    """The chain (INV-1, S9)."""

    def write_origin(self, pipeline: str, generation: int, origin: Origin) -> None:
        if self._tx.around.guards.origin_is_written:
            super().write_origin(pipeline, generation, origin)

    def advance(self, epoch: Epoch, planned: PlannedRange) -> bool:
        links = self.rows.chains.setdefault((epoch.pipeline, epoch.generation, planned.tp), [])
        start, until = planned.range.start, planned.range.until
        if self._tx.around.guards.swap_compares and max((end for _, end, _ in links), default=None) != start:
            return False
        if self._tx.around.guards.chain_constrained:
            starts, ends = {link[0] for link in links}, {link[1] for link in links}
            if start in starts or until in ends or start not in ends:
                raise LedgerError("PostgreSQL refused (23505): the chain's constraints")
        links.append((start, until, epoch.epoch_id))
        return True


class GuardedEpochs(Guarded, FakeEpochs):
    """Epochs (INV-3)."""

    def ranges(self, epoch: Epoch) -> Sequence[PlannedRange]:
        planned = super().ranges(epoch)
        if self._tx.around.guards.intent_is_read:
            return planned
        ends = {view.tp: view.last_stable for view in self._tx.around.kafka.views.values()}
        return tuple(replace(one, range=OffsetRange(start=one.range.start, until=ends[one.tp])) for one in planned)


class GuardedAttempts(Guarded, FakeAttempts):
    """Attempts (INV-4)."""

    def begin(
        self, epoch: Epoch, run: Run, pipeline: Pipeline, targets: Mapping[str, Mapping[str, str]]
    ) -> StagingTicket:
        ticket = super().begin(epoch, run, pipeline, targets)
        row = self.rows.attempts[ticket.attempt_id]
        row.attempt = replace(row.attempt, token=f"token-{self._tx.around.era}{ticket.attempt_id}")
        return self.ticket(row.attempt, pipeline, targets)

    def end_sessions(self, attempt: Attempt) -> int:
        self._tx.ended_sessions.append(attempt.attempt_id)
        return 0

    def drop_staging(self, attempt: Attempt) -> None:
        if attempt.attempt_id in self._tx.around.open_tables:
            raise LockTimeoutError(f"{attempt}: a writer holds its staging")
        super().drop_staging(attempt)


class GuardedTargets(Guarded, FakeTargets):
    """Targets: a row is (partition, offset), and (partition, offset, epoch) once it is visible."""

    def apply(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Mapping[str, Applied]:
        for sink, staged in tables:
            rows: Any = self.rows.staging[staged.table]
            shown: Any = [(*row, epoch.epoch_id) for row in rows]
            self.rows.targets[sink.table] = sorted(self.rows.targets[sink.table] + shown)
        return {sink.table: Applied(rows=len(self.rows.staging[staged.table])) for sink, staged in tables}

    def undo_rows(self, table: str, epochs: Sequence[int]) -> int:
        rows: Any = self.rows.targets[table]
        self.rows.targets[table] = [row for row in rows if row[2] not in epochs]
        return len(rows) - len(self.rows.targets[table])


class GuardedReceipts(Guarded, FakeReceipts):
    """Receipts, in the order of their epochs."""

    def due(self, pipeline: str) -> Sequence[DueReceipt]:
        due = super().due(pipeline)
        return due if self._tx.around.guards.due_in_order else due[::-1]


def heads_of(rows: Rows) -> Sequence[Head]:
    return FakeTransaction(rows, lambda: NOW).chain.heads(NAME, 1)


def transaction_of_job(rows: Rows, kafka: FakeKafka, guards: Guards) -> GuardedTransaction:
    """A transaction of a Spark job, over tables of its own."""
    return GuardedTransaction(clone(rows), Surroundings(kafka, frozenset(), guards))
