"""Several sources read as one: by the names that the ledger has for their topics, each with its own parse."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from epochline.arrow.stage.batch_rows import BatchRows
from epochline.arrow.stage.counts import CountsByPartition
from epochline.declare.names import ledger_prefix
from epochline.kafka.records import Columns, ReadSession, RecordReader
from epochline.protocol.offsets import OffsetRange, belongs_to
from epochline.protocol.planning import HeldLog
from epochline.sources.reading import SourceReader, SourceReading


class SeveralReaders:
    """The records of several sources, by the name of each; it has the methods of a source's own reader."""

    def __init__(self, readers: Mapping[str, RecordReader | SourceReader]) -> None:
        self._readers = readers

    @contextmanager
    def session(self) -> Iterator["SeveralReadings"]:
        """Open every source."""
        with ExitStack() as block:
            sessions: dict[str, ReadSession | SourceReading] = {}
            for name, reader in self._readers.items():
                session: Any = block.enter_context(reader.session())
                sessions[name] = session
            yield SeveralReadings(sessions)

    def held(self, topics: Sequence[str]) -> Mapping[tuple[str, int], HeldLog]:
        """The logs that the sources have now, by topic in the ledger and partition."""
        held: dict[tuple[str, int], HeldLog] = {}
        for name, reader in self._readers.items():
            prefix = ledger_prefix(name)
            own = [topic.removeprefix(prefix) for topic in topics if belongs_to(name, topic)]
            for (topic, number), log in reader.held(own).items():
                held[f"{prefix}{topic}", number] = replace(log, identity=f"{prefix}{log.identity}")
        return held


class SeveralReadings:
    """Several sources that are open."""

    def __init__(self, sessions: Mapping[str, ReadSession | SourceReading]) -> None:
        self._sessions = sessions

    def read(self, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Columns]:
        """As the source of the topic reads it."""
        name = next(name for name in self._sessions if belongs_to(name, topic))
        yield from self._sessions[name].read(topic.removeprefix(ledger_prefix(name)), partition, wanted)


Readers = RecordReader | SourceReader | SeveralReaders
"""The source of an audit."""

Readings = ReadSession | SourceReading | SeveralReadings
"""An audit's source that is open."""


class SeveralRows:
    """The parse of each source, in place of one `BatchRows`. A transform makes the rows of several sources."""

    transformed = True

    def __init__(self, flows: Mapping[str, BatchRows]) -> None:
        self._flows = flows

    def parse_only(
        self, batch: pa.RecordBatch
    ) -> tuple[Mapping[str, pa.RecordBatch], pa.RecordBatch, CountsByPartition]:
        """As `BatchRows.parse_only` of the sources whose records these are, with the rows of each by its name."""
        topics = [str(topic) for topic in batch.column("topic").to_pylist()]
        made: dict[str, tuple[pa.RecordBatch, pa.RecordBatch, CountsByPartition]] = {}
        for name, flow in self._flows.items():
            own = [belongs_to(name, topic) for topic in topics]
            if any(own) or not topics:
                made[name] = flow.parse_only(batch.filter(pa.array(own, pa.bool_())))
        counts: dict[tuple[str, int], object] = {}
        for _, _, of_source in made.values():
            counts.update(of_source)
        quarantine = pa.Table.from_batches([one[1] for one in made.values()]).combine_chunks()
        kept = quarantine.to_batches() or [next(iter(made.values()))[1]]
        return {name: one[0] for name, one in made.items()}, kept[0], counts  # type: ignore[return-value]  # of the same types
