"""Records that a test gives to a pipeline, or that a pipeline publishes, and the topics in memory that hold them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from epochline.arrow.cast.batches import record_batch
from epochline.declare.inputs import Input
from epochline.declare.names import ledger_prefix
from epochline.errors import ConfigurationError
from epochline.protocol.offsets import PlannedRange
from epochline.sources.memory import Key, TopicsInMemory

Value = Any
"""bytes, text (as UTF-8), None (a tombstone), or anything else as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of a Kafka topic.

    Args:
        value: bytes; text, which becomes UTF-8; None for a tombstone; anything else becomes JSON.
        key: as ``value``.
        headers: pairs of a name and a value, which is as ``value``.
        timestamp: with a time zone; by default the time of the epoch.
        topic: as the ledger names it, with several sources ``input/topic``. Not needed if the pipeline reads one topic.
        partition: number of the partition, by default 0. A published record has None if its key decides.
    """

    value: Value
    key: Value = None
    headers: Sequence[tuple[str, Value]] = ()
    timestamp: datetime | None = None
    topic: str | None = None
    partition: int | None = None

    def __post_init__(self) -> None:
        """Refuse a time without a zone, which would depend on the machine's."""
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            raise ValueError(f"timestamp: {self.timestamp} needs a time zone")


def _bytes(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


@dataclass
class GivenTopics(TopicsInMemory):
    """The topics of one source, with their records."""

    records: dict[Key, list[Mapping[str, Any]]] = field(default_factory=dict)

    def append(self, record: Record, topic: str) -> None:
        """Append a record to a partition of a topic, which is made with all partitions below if it is missing."""
        partition = record.partition or 0
        for number in range(partition):
            self.produce(topic, number, 0)
        made = record.timestamp or datetime.now(UTC)
        log = self.records.setdefault((topic, partition), [])
        log.append(
            {
                "offset": len(log),
                "timestamp": round(made.timestamp() * 1000),
                "timestamp_type": 0,
                "key": _bytes(record.key),
                "value": _bytes(record.value),
                "headers": tuple((name, _bytes(value)) for name, value in record.headers),
            }
        )
        self.produce(topic, partition, 1, at=made)

    def read(self, planned: PlannedRange, prefix: str) -> pa.RecordBatch:
        """The records of a range, whose topic has the prefix of its input."""
        topic, partition = planned.tp.topic.removeprefix(prefix), planned.tp.partition
        rows = self.records[topic, partition][planned.range.start : planned.range.until]
        return record_batch(planned.tp.topic, partition, {name: [row[name] for row in rows] for name in rows[0]})


def append_all(given: Mapping[str, GivenTopics], inputs: Mapping[str, Input], records: Iterable[Any]) -> None:
    """Append records, or their values, to the topics of their inputs.

    Raises:
        ConfigurationError: a record names no topic of the pipeline, or none where there are several.
        TypeError: the records are one value and not a list; a value is not JSON.
    """
    if isinstance(records, bytes | str | Mapping | Record):
        raise TypeError(f"records: give a list of records, not a {type(records).__name__}")
    declared = [ledger_prefix(name) + topic for name, one in inputs.items() for topic in one.source.topics]
    only = declared[0] if len(declared) == 1 else None
    for one in records:
        record = one if isinstance(one, Record) else Record(value=one)
        name, topic = _place(record.topic or only, inputs)
        given[name].append(record, topic)


def _place(topic: str | None, inputs: Mapping[str, Input]) -> tuple[str, str]:
    """The input that reads a topic, and the topic as this input's source names it."""
    for name, one in inputs.items():
        prefix = ledger_prefix(name)
        if topic is not None and topic.startswith(prefix) and one.source.reads(topic.removeprefix(prefix)):
            return name, topic.removeprefix(prefix)
    reads = ", ".join(ledger_prefix(name) + one.source.described for name, one in inputs.items())
    which = "no topic" if topic is None else f"the topic {topic}"
    raise ConfigurationError(f"a record names {which}, and the pipeline reads {reads}: write Record(…, topic=…).")
