"""Reads ranges of a source of the user's own: in Spark's tasks, and for previews."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from epochline.config.connections import Connection
from epochline.declare.specs import CustomSourceSpec, load_function
from epochline.errors import EpochlineError, RecordsGoneError, SourceError, SourceUnavailableError
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.planning import HeldLog
from epochline.protocol.source import Source, SourceRecord

_BYTES = 16 * 1024 * 1024
_UNIX_EPOCH = datetime.fromtimestamp(0, UTC)
_NO_TIME = -(2**62)
"""Beyond every time that a parse can receive, which therefore receives NULL."""


def open_source(declared: CustomSourceSpec, connection: Connection | None = None) -> Source:
    """Construct a source, with its connection if it names one; raises `DeclarationError` or `SourceError`."""
    construct = load_function(declared.source)
    with explaining(declared, "cannot be opened"):
        options = declared.options if connection is None else {**declared.options, "connection": connection}
        return cast("Source", construct(**options))


@contextmanager
def explaining(declared: CustomSourceSpec, what: str) -> Iterator[None]:
    """Translate what a source of the user's own raises in the block."""
    try:
        yield
    except EpochlineError:
        raise
    except OSError as error:
        raise SourceUnavailableError(f"source {declared.name} {what}: {type(error).__name__}: {error}.") from error
    except Exception as error:  # a class of the user's own may raise anything
        raise SourceError(f"source {declared.name} {what}: {type(error).__name__}: {error}.") from error


@dataclass(frozen=True, slots=True)
class SourceReader:
    """Reads ranges of a source in batches of ``records`` or 16 MiB. It has the methods of Kafka's reader."""

    declared: CustomSourceSpec
    records: int = 10_000
    connection: Connection | None = field(default=None, repr=False)

    @contextmanager
    def session(self) -> Iterator[SourceReading]:
        """Construct the source; use it for many ranges. Raises as `open_source`."""
        yield SourceReading(self.declared, open_source(self.declared, self.connection), self.records)

    def held(self, topics: Sequence[str]) -> Mapping[tuple[str, int], HeldLog]:
        """What the source has now, by name and partition; empty for other topics. Raises as `open_source`."""
        name = self.declared.name
        source = open_source(self.declared, self.connection)
        with explaining(self.declared, "does not say what it has"):
            return {
                (name, partition.partition): HeldLog(
                    identity=partition.identity, start=partition.start, end=max(partition.end, partition.newest or 0)
                )
                for partition in source.partitions()
                if name in topics
            }


@dataclass(frozen=True, slots=True)
class SourceReading:
    """A source that is open."""

    declared: CustomSourceSpec
    source: Source
    most: int

    def read(self, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Mapping[str, Sequence[Any]]]:
        """Yields the records of a range in order, some thousand at a time; raises `SourceError`."""
        doing = f"{topic}-{partition}{wanted}"
        position, batch, size = wanted.start, list[SourceRecord](), 0
        for record in self._records(doing, partition, wanted):
            if not position <= record.position < wanted.until:
                raise SourceError(
                    f"reading {doing}: the source gave position {record.position} where only positions from {position}"
                    f" to {wanted.until - 1} may follow. Correct the source: positions rise, and lie in the range."
                )
            if self.declared.dense and record.position > position:
                raise self._gone(doing, position)
            position = record.position + 1
            batch.append(record)
            size += len(record.key or b"") + len(record.value or b"")
            if len(batch) >= self.most or size >= _BYTES:
                yield _columns(batch)
                batch, size = [], 0
        if self.declared.dense and position < wanted.until:
            raise self._gone(doing, position)
        if batch:
            yield _columns(batch)

    def _records(self, doing: str, partition: int, wanted: OffsetRange) -> Iterable[SourceRecord]:
        with explaining(self.declared, f"failed while {doing} was read"):
            yield from self.source.read(partition, wanted.start, wanted.until)

    @staticmethod
    def _gone(doing: str, position: int) -> RecordsGoneError:
        return RecordsGoneError(
            f"reading {doing}: the source has no record at position {position}, and its positions are declared dense."
            " Correct the source, or declare positions='sparse'."
        )


def _columns(records: Sequence[SourceRecord]) -> Mapping[str, Sequence[Any]]:
    return {
        "offset": [record.position for record in records],
        "timestamp": [
            _NO_TIME if record.timestamp is None else (record.timestamp - _UNIX_EPOCH) // timedelta(milliseconds=1)
            for record in records
        ],
        "timestamp_type": [-1 if record.timestamp is None else 0 for record in records],
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "headers": [None] * len(records),
    }
