"""Read the records of offset ranges again, for audits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError, OffsetOutOfRangeError
from kafka.protocol.consumer import IsolationLevel

from epochline.config.kafka import python_settings
from epochline.errors import DataLossError, SourceError, SourceUnavailableError
from epochline.protocol.offsets import OffsetRange

logging.getLogger("kafka").setLevel(logging.WARNING)

_RECORDS, _BYTES = 10_000, 16 * 1024 * 1024
_POLL_MS = 1_000
_STALLED_SECONDS = 60

Columns = Mapping[str, list[Any]]
"""Records column by column, under the names that parsers use, without topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLog:
    """A topic's log now.

    ``held`` gives the offsets ``[log start, last stable offset)`` of each partition. In a compacted topic, records
    in between may be missing.
    """

    topic_id: str
    compacted: bool
    held: Mapping[int, tuple[int, int]]


class RecordReader:
    """Reads ranges of offsets with isolation level ``read_committed``, in order and in bounded memory.

    Args:
        settings: what `epochline.config.kafka.broker_settings` gave.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = python_settings(settings)

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        """The logs of those topics that exist.

        Raises:
            SourceUnavailableError: Kafka does not answer.
            SourceError: Kafka refuses.
        """
        if not topics:
            return {}
        with _explaining(), closing(KafkaAdminClient(client_id="epochline-audit", **self._settings)) as admin:
            known = [topic for topic in admin.describe_topics(sorted(topics)) if not topic["error_code"]]
            keys = [
                KafkaPartition(topic["name"], partition["partition_index"])
                for topic in known
                for partition in topic["partitions"]
            ]
            if not keys:
                return {}
            starts = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.EARLIEST))
            ends = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.LATEST), IsolationLevel.READ_COMMITTED)
            resources = [ConfigResource(ConfigResourceType.TOPIC, topic["name"], ["cleanup.policy"]) for topic in known]
            configs = admin.describe_configs(resources, config_filter="all")["topic"]
        return {
            topic["name"]: TopicLog(
                topic_id=str(topic["topic_id"]),
                compacted="compact" in configs[topic["name"]]["cleanup.policy"]["value"],
                held={
                    key.partition: (starts[key].offset, ends[key].offset) for key in keys if key.topic == topic["name"]
                },
            )
            for topic in known
        }

    @contextmanager
    def session(self) -> Iterator[ReadSession]:
        """Opens a consumer; use it for many ranges, one after the other."""
        with _explaining():
            consumer = KafkaConsumer(
                **self._settings,
                client_id="epochline-audit",
                group_id=None,
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="none",
                max_poll_records=_RECORDS,
                max_partition_fetch_bytes=_BYTES,
                fetch_max_bytes=_BYTES,
                # A checksum in Python takes most of the time, and the audit's digest detects a changed byte as well.
                check_crcs=False,
                # How long the client sleeps while it does not know the partition's leader; 100 by default.
                retry_backoff_ms=10,
            )
        try:
            yield ReadSession(consumer)
        finally:
            consumer.close()


class ReadSession:
    """A consumer that reads ranges."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def read(self, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Columns]:
        """Yields the visible records of a range in offset order, some thousand at a time.

        The consumer's position says when the range ends, because its last offsets may hold no visible record.

        Raises:
            DataLossError: retention or a truncation removed offsets of the range.
            SourceUnavailableError: Kafka does not answer any more.
            SourceError: Kafka refuses, or a record cannot be read.
        """
        key = KafkaPartition(topic, partition)
        with _explaining():
            self._consumer.assign([key])
            self._consumer.seek(key, wanted.start)
        held: list[Any] = []
        size, progress = 0, time.monotonic()
        position = wanted.start
        while position < wanted.until:
            with _explaining(f"{topic}-{partition}{wanted}"):
                polled = self._consumer.poll(timeout_ms=_POLL_MS).get(key, [])
                reached = self._consumer.position(key)
            if reached > position:
                position, progress = reached, time.monotonic()
            elif time.monotonic() - progress > _STALLED_SECONDS:
                raise SourceUnavailableError(
                    f"{topic}-{partition}: no record came for {_STALLED_SECONDS} s at offset {position} of {wanted}."
                )
            held += [record for record in polled if record.offset < wanted.until]
            size += sum(len(record.value or b"") + len(record.key or b"") for record in polled)
            if len(held) >= _RECORDS or size >= _BYTES:
                yield _columns(held)
                held, size = [], 0
        if held:
            yield _columns(held)


def _columns(records: Sequence[Any]) -> Columns:
    return {
        "offset": [record.offset for record in records],
        "timestamp": [record.timestamp for record in records],
        "timestamp_type": [record.timestamp_type for record in records],
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        # As in Spark: a record without headers has NULL.
        "headers": [list(record.headers) or None for record in records],
    }


@contextmanager
def _explaining(what: str = "Kafka") -> Iterator[None]:
    """Translate kafka-python's errors in the block."""
    try:
        yield
    except OffsetOutOfRangeError as error:
        raise DataLossError(f"{what}: Kafka no longer has these offsets.") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{what}: the name of a header is not valid UTF-8.") from error
    except KafkaError as error:
        kind = SourceUnavailableError if getattr(error, "retriable", False) else SourceError
        raise kind(f"{what}: {str(error) or type(error).__name__}") from error
    except OSError as error:
        raise SourceUnavailableError(f"{what} does not answer: {error}") from error
