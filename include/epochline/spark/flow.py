"""Interface of the flows that turn a Spark partition's batches into staged rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from epochline.protocol.staging import StagedTable


class Flow(Protocol):
    """Sorts the rows of one Spark partition by sink. Made on the executor, used by one task."""

    def process(self, batch: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        """Return rows to stage now, by sink, with exactly the staging columns."""
        ...

    def finish(self) -> Mapping[str, pa.RecordBatch]:
        """Return rows that were held back until the end of the partition."""
        ...

    def message(self, sink: str) -> Mapping[str, Any]:
        """Return the message of a sink's part, in addition to its number of rows."""
        ...


class FlowFactory(Protocol):
    """Makes flows. It is picklable, because the writer carries it to the executors."""

    @property
    def tables(self) -> tuple[StagedTable, ...]:
        """The staging tables that this write fills; each gets a part and a manifest."""
        ...

    def make(self) -> Flow:
        """Make a flow for one Spark partition."""
        ...
