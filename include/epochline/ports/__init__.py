"""What the use cases need from databases and Kafka. Each Protocol is named for its role; adapters do not inherit it.

A `Transaction` is one transaction of the database that holds ledger, staging and targets. No method of its sides
commits (INV-2). Every method that locks says so. Locks are taken in one order everywhere: pipeline, epoch, attempt.
"""

from epochline.ports.epochs import Attempts, Chain, EpochRows, Manifest, PartSum, PipelineRow
from epochline.ports.ledger import SINK, Ledger, Transaction
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
    Prepared,
    Quarantine,
    RowDifference,
    Selection,
    States,
    TableDifference,
    Targets,
    Upserted,
)

__all__ = [
    "PAUSE_AFTER_FAILURES",
    "PAUSE_BEHIND",
    "PAUSE_DOWN",
    "SINK",
    "Aborts",
    "Accepted",
    "ActionRow",
    "AnnouncedReceipt",
    "Applied",
    "Attempts",
    "Chain",
    "Claims",
    "Decision",
    "DueReceipt",
    "EpochRows",
    "Fit",
    "History",
    "Ledger",
    "Manifest",
    "OffsetSource",
    "Operators",
    "PartSum",
    "PipelineRow",
    "PipelineStatus",
    "Prepared",
    "Quarantine",
    "Receipts",
    "RowDifference",
    "Savepoints",
    "Selection",
    "States",
    "TableDifference",
    "Targets",
    "Transaction",
    "Upserted",
]
