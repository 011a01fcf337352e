"""The part of one Spark partition in the sinks beside the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from epochline.declare.specs import ExternalSpec
from epochline.postgres.ledger.parts import EXTERNAL
from epochline.protocol.sink import PartWriter, SinkAttempt
from epochline.protocol.staging import StagedTable
from epochline.sinks import external_sink


class ExternalParts:
    """Writers of those sinks beside the database that a write fills; closed with the block, finished or not.

    Args:
        declared: every such sink of the declaration.
        tables: what the write fills.
        attempt: whose rows.
        part: number of the Spark partition.
    """

    def __init__(
        self, declared: Sequence[ExternalSpec], tables: Sequence[StagedTable], attempt: SinkAttempt, part: int
    ) -> None:
        filled = {table.sink for table in tables}
        self._declared = [sink for sink in declared if sink.name in filled]
        self._attempt = attempt
        self._part = part
        self._writers: dict[str, PartWriter] = {}

    def __contains__(self, sink: str) -> bool:
        return any(one.name == sink for one in self._declared)

    def __enter__(self) -> ExternalParts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def open(self) -> None:
        """Begin the part in each sink; an own sink's class must be importable by now."""
        for declared in self._declared:
            self._writers[declared.name] = external_sink(declared).write(self._attempt, self._part)

    def writing(self, sink: str) -> Callable[[pa.RecordBatch], None]:
        """Where a sink's rows go."""
        return self._writers[sink].write

    def finish(self) -> Mapping[str, dict[str, Any]]:
        """End the part in each sink; by sink, what its seal must know."""
        return {sink: {EXTERNAL: dict(writer.finish())} for sink, writer in self._writers.items()}
