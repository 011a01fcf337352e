"""What happens to the batches of one Spark partition on their way into staging: one class per kind of write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from epochline.protocol.staging import StagedTable


class Flow(Protocol):
    """Rows of one Spark partition, sorted by sink. Made on the executor, used by one task."""

    def process(self, batch: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        """Rows to stage now, by sink, with exactly the staging columns."""
        ...

    def finish(self) -> Mapping[str, pa.RecordBatch]:
        """Rows that were held back until the end of the partition."""
        ...

    def message(self, sink: str) -> Mapping[str, Any]:
        """What the part of a sink carries beside its number of rows."""
        ...


class FlowFactory(Protocol):
    """Picklable: travels to the executors inside the writer."""

    @property
    def tables(self) -> tuple[StagedTable, ...]:
        """The staging tables that this write fills; each gets a part and a manifest."""
        ...

    def make(self) -> Flow:
        """A flow for one Spark partition."""
        ...
