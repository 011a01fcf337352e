"""The ledger, and a transaction with its sides."""

from contextlib import AbstractContextManager
from typing import Protocol

from epochline.declare.pipeline import Pipeline
from epochline.ports.epochs import Attempts, Chain, EpochRows
from epochline.ports.operators import History, Operators, Savepoints
from epochline.ports.receipts import Receipts
from epochline.ports.targets import Quarantine, States, Targets
from epochline.protocol.sink import Committing, Inspectable, Measured, Preflighted, Prepared, Sink

SINK = (Committing, Preflighted, Prepared, Measured, Inspectable)
"""What use cases ask of a sink. All but the first are optional."""


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
        """Keyed state and event times."""

    @property
    def savepoints(self) -> Savepoints:
        """Savepoints."""

    @property
    def receipts(self) -> Receipts:
        """Which sinks show which epochs."""


class Ledger(Protocol):
    """Where transactions come from."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a transaction. It is committed at the end of the block, and rolled back if the block raises.

        Raises:
            LedgerUnavailableError: the connection was lost. A commit in flight may have happened (INV-5).
        """

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        """A declared sink that shows an epoch after its commit. Call it outside transactions.

        Raises:
            ConfigurationError: this ledger was made without such sinks.
            SinkError: the sink cannot be made here; other sinks are unaffected.
        """
