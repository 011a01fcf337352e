"""Writes one Spark partition's part to the external sinks."""

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
    """Writers of the external sinks that a write fills; a context manager that closes them.

    Args:
        declared: every external sink of the declaration.
        tables: the destinations that the write fills.
        attempt: the attempt of the rows.
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
        """Begin the part in each sink; the class of a custom sink must be importable."""
        for declared in self._declared:
            self._writers[declared.name] = external_sink(declared).write(self._attempt, self._part)

    def writing(self, sink: str) -> Callable[[pa.RecordBatch], None]:
        """The function that writes a sink's rows."""
        return self._writers[sink].write

    def finish(self) -> Mapping[str, dict[str, Any]]:
        """End the part in each sink; return by sink the message for its seal."""
        return {sink: {EXTERNAL: dict(writer.finish())} for sink, writer in self._writers.items()}
