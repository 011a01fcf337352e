"""What the use cases need from databases and Kafka. Each Protocol is named for its role; adapters do not inherit it.

A `Transaction` is one transaction of the database that holds ledger, staging and targets. No method of its sides
commits (INV-2). Every method that locks says so. Locks are taken in one order everywhere: pipeline, epoch, attempt.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from epochline.declare.pipeline import Pipeline
from epochline.ports.epochs import Attempts, Chain, EpochRows, Manifest, NewEpoch, PipelineRow
from epochline.ports.erasures import Erasures, Parsed, RecordPlace, StoredRecord
from epochline.ports.operators import (
    PAUSE_AFTER_FAILURES,
    PAUSE_BEHIND,
    PAUSE_DOWN,
    Aborts,
    ActionRow,
    Decision,
    History,
    Operators,
    PipelineStatus,
    Savepoints,
)
from epochline.ports.receipts import Accepted, AnnouncedReceipt, DueReceipt, Receipts
from epochline.ports.source import OffsetSource
from epochline.ports.targets import (
    Applied,
    Claims,
    Fit,
    Held,
    Prepared,
    Quarantine,
    RowDifference,
    Selection,
    States,
    TableDifference,
    Targets,
    Upserted,
)
from epochline.protocol.sink import Committing, Inspectable, Measured, Preflighted, Rechecked, Sink
from epochline.protocol.sink import Prepared as Preparable

__all__ = [
    "PAUSE_AFTER_FAILURES",
    "PAUSE_BEHIND",
    "PAUSE_DOWN",
    "Aborts",
    "Accepted",
    "ActionRow",
    "AnnouncedReceipt",
    "Applied",
    "Claims",
    "Decision",
    "DueReceipt",
    "Erasures",
    "Fit",
    "Held",
    "Ledger",
    "Manifest",
    "NewEpoch",
    "OffsetSource",
    "Parsed",
    "PipelineRow",
    "PipelineStatus",
    "Prepared",
    "RecordPlace",
    "RowDifference",
    "Savepoints",
    "Selection",
    "StoredRecord",
    "TableDifference",
    "Transaction",
    "Upserted",
]

SINK = (Committing, Preflighted, Preparable, Measured, Inspectable, Rechecked)
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
    def erasures(self) -> Erasures:
        """What leaves the ledger."""

    @property
    def receipts(self) -> Receipts:
        """Which sinks show which epochs."""


class Ledger(Protocol):
    """Where transactions come from."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a transaction, which is committed at the end of the block, or rolled back if the block raises.

        Raises:
            LedgerUnavailableError: the connection was lost. A commit in flight may have happened (INV-5).
        """

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        """A declared sink that shows an epoch after its commit. Call it outside transactions.

        Raises:
            ConfigurationError: this ledger was made without such sinks.
            SinkError: the sink cannot be made here; other sinks are unaffected.
        """
