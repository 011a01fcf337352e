"""Records of offset ranges, read again: what an audit compares the ledger and the targets with."""

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
"""Records column by column: partition and topic apart, under the names that parsers know them by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLog:
    """What Kafka has of a topic now.

    ``held`` gives per partition the offsets ``[log start, last stable offset)``. A compacted topic may have given up
    records in between.
    """

    topic_id: str
    compacted: bool
    held: Mapping[int, tuple[int, int]]


class RecordReader:
    """Reads ranges of offsets, at the isolation level ``read_committed``, in order and in bounded memory.

    Args:
        settings: what `epochline.config.kafka.broker_settings` gave.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = python_settings(settings)

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        """What Kafka has of these topics; those that it does not know are left out.

        Raises:
            SourceUnavailableError, SourceError: Kafka does not answer, or refuses.
        """
        if not topics:
            return {}
        with _told(), closing(KafkaAdminClient(client_id="epochline-audit", **self._settings)) as admin:
            known = [one for one in admin.describe_topics(sorted(topics)) if not one["error_code"]]
            keys = [KafkaPartition(one["name"], each["partition_index"]) for one in known for each in one["partitions"]]
            if not keys:
                return {}
            starts = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.EARLIEST))
            ends = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.LATEST), IsolationLevel.READ_COMMITTED)
            resources = [ConfigResource(ConfigResourceType.TOPIC, one["name"], ["cleanup.policy"]) for one in known]
            configs = admin.describe_configs(resources, config_filter="all")["topic"]
        return {
            one["name"]: TopicLog(
                topic_id=str(one["topic_id"]),
                compacted="compact" in configs[one["name"]]["cleanup.policy"]["value"],
                held={
                    key.partition: (starts[key].offset, ends[key].offset) for key in keys if key.topic == one["name"]
                },
            )
            for one in known
        }

    @contextmanager
    def session(self) -> Iterator[ReadSession]:
        """A consumer that reads one range after the other."""
        with _told():
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
                # In Python a checksum of every byte takes most of the time, and the digest sees a changed byte as well.
                check_crcs=False,
                # So long the client sleeps until it has heard of the partition's leader; 100 by default.
                retry_backoff_ms=10,
            )
        try:
            yield ReadSession(consumer)
        finally:
            consumer.close()


class ReadSession:
    """One consumer's reads."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def read(self, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Columns]:
        """The visible records of a range, in offset order, some thousand at a time. The end is told by position alone.

        Raises:
            DataLossError: retention or a truncation took offsets of the range away.
            SourceUnavailableError: Kafka does not answer any more.
            SourceError: Kafka refuses, or a record cannot be read.
        """
        key = KafkaPartition(topic, partition)
        with _told():
            self._consumer.assign([key])
            self._consumer.seek(key, wanted.start)
        held: list[Any] = []
        size, progress = 0, time.monotonic()
        position = wanted.start
        while position < wanted.until:
            with _told(f"{topic}-{partition}{wanted}"):
                polled = self._consumer.poll(timeout_ms=_POLL_MS).get(key, [])
                reached = self._consumer.position(key)
            if reached > position:
                position, progress = reached, time.monotonic()
            elif time.monotonic() - progress > _STALLED_SECONDS:
                raise SourceUnavailableError(
                    f"{topic}-{partition}: nothing came for {_STALLED_SECONDS} s at offset {position} of {wanted}."
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
        # As Spark gives them: none is NULL.
        "headers": [list(record.headers) or None for record in records],
    }


@contextmanager
def _told(what: str = "Kafka") -> Iterator[None]:
    """The client's errors as ours."""
    try:
        yield
    except OffsetOutOfRangeError as error:
        raise DataLossError(f"{what}: Kafka has these offsets no more.") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{what}: the name of a header is not UTF-8, which this client cannot read.") from error
    except KafkaError as error:
        kind = SourceUnavailableError if getattr(error, "retriable", False) else SourceError
        raise kind(f"{what}: {str(error) or type(error).__name__}") from error
    except OSError as error:
        raise SourceUnavailableError(f"{what} does not answer: {error}") from error
