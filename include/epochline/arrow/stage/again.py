"""What a committed epoch's transform or windows get again, so that an audit can compare their rows."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from epochline.declare.pipeline import Pipeline
from epochline.protocol.staging import StagedTable

RowsAgain = Mapping[str, Sequence[pa.RecordBatch]]
"""By destination, rows with the columns of its staging table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAgain:
    """One committed epoch: its parsed records by input, and what it found when it began."""

    epoch_id: int
    pipeline: Pipeline
    tables: Sequence[StagedTable]
    """The columns of every destination."""
    wanted: frozenset[str]
    """The destinations whose rows are wanted."""
    parsed: RowsAgain
    before: datetime | None
    """The watermark of the epoch before it."""
    after: datetime | None
    """Its own watermark."""
    states: Mapping[str, str]
    """By state table, the table that holds what the epochs before left."""
    session: Callable[[], AbstractContextManager[Any]]
    """Gives a session of PostgreSQL, in a transaction, that reads those tables."""
    inexact: Mapping[str, frozenset[str]]
    """By destination, the columns of floating-point numbers: a sum of them depends on the order of its terms."""


RunAgain = Callable[[EpochAgain], RowsAgain]
"""Runs an epoch's transform or windows again; raises what they raise."""
