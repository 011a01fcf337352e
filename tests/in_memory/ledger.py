"""A ledger in memory, and its transactions."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from epochline.declare.pipeline import Pipeline
from epochline.ports import Erasures, Ledger, Savepoints
from epochline.protocol.sink import Sink
from tests.in_memory.attempts import FakeAttempts, FakeJob
from tests.in_memory.chain import FakeChain
from tests.in_memory.epochs import FakeEpochs
from tests.in_memory.operators import FakeHistory, FakeOperators
from tests.in_memory.receipts import FakeReceipts
from tests.in_memory.rows import Rows, Side
from tests.in_memory.targets import FakeQuarantine, FakeStates, FakeTargets


class FakeLedger:
    """A ledger, its staging and its targets in memory. Implements `epochline.ports.Ledger`.

    Transactions run one after the other. Each changes a copy, which replaces the original if the block raises nothing.
    Targets know only mode ``append``. There are no savepoints.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.rows = Rows()
        self.now = now
        self.sinks: dict[str, Sink] = {}
        """By name, the sinks that show an epoch after its commit."""
        self._one_at_a_time = threading.RLock()

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        """One of `sinks`."""
        return self.sinks[name]

    @contextmanager
    def transaction(self) -> Iterator[FakeTransaction]:
        """Keep the block's changes if it raises nothing."""
        with self._one_at_a_time:
            rows = copy.deepcopy(self.rows)
            yield FakeTransaction(rows, self.now)
            self.rows = rows


class FakeTransaction:
    """One transaction of a `FakeLedger`. Implements `epochline.ports.Transaction`."""

    def __init__(self, rows: Rows, now: Callable[[], datetime]) -> None:
        self.rows = rows
        self.now = now
        self.epochs = FakeEpochs(self)
        self.chain = FakeChain(self)
        self.attempts = FakeAttempts(self)
        self.targets = FakeTargets(self)
        self.quarantine = FakeQuarantine(self)
        self.operators = FakeOperators(self)
        self.history = FakeHistory(self)
        self.states = FakeStates(self)
        self.erasures = FakeErasures(self)
        self.receipts = FakeReceipts(self)
        self.job = FakeJob(self)
        """What a Spark job would write; no side of a real transaction."""

    @property
    def savepoints(self) -> Savepoints:
        """There are none.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "a FakeLedger keeps no savepoints, whose copies are tables: try savepoint and restore on PostgreSQL"
        )


class FakeErasures(Side):
    """Implements `epochline.ports.Erasures`: nothing is too old, and nothing is erased."""

    def retentions(self) -> Mapping[str, Mapping[str, float]]:
        return {}

    def clock(self) -> datetime:
        return self._now()

    def expire(self, pipeline: str, kind: str, age: float, at_most: int) -> int:
        return 0

    def erased(self, pipeline: str, epochs: Sequence[int]) -> Sequence[str]:
        return ()

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"a FakeLedger erases nothing ({name}): try forget on PostgreSQL")


if TYPE_CHECKING:
    _ERASURES: type[Erasures] = FakeErasures
    _LEDGER: type[Ledger] = FakeLedger
