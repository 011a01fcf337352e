"""What Kafka holds of topics now, for audits."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError
from kafka.protocol.consumer import IsolationLevel

from epochline.config.kafka import python_settings
from epochline.errors import SourceError, SourceUnavailableError

logging.getLogger("kafka").setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLog:
    """A topic's log now.

    ``held`` gives the offsets ``[log start, last stable offset)`` of each partition. In a compacted topic, records
    in between may be missing.
    """

    topic_id: str
    compacted: bool
    held: Mapping[int, tuple[int, int]]


def topic_logs(settings: Mapping[str, str], topics: Sequence[str]) -> dict[str, TopicLog]:
    """The logs of those topics that exist.

    Args:
        settings: what `epochline.config.kafka.broker_settings` gave.
        topics: names of topics.

    Raises:
        SourceUnavailableError: Kafka does not answer.
        SourceError: Kafka refuses.
    """
    if not topics:
        return {}
    properties = python_settings(settings)
    with _explaining(), closing(KafkaAdminClient(client_id="epochline-audit", **properties)) as admin:
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
            held={key.partition: (starts[key].offset, ends[key].offset) for key in keys if key.topic == topic["name"]},
        )
        for topic in known
    }


@contextmanager
def _explaining() -> Iterator[None]:
    """Translate kafka-python's errors in the block."""
    try:
        yield
    except KafkaError as error:
        kind = SourceUnavailableError if getattr(error, "retriable", False) else SourceError
        raise kind(f"Kafka: {str(error) or type(error).__name__}") from error
    except OSError as error:
        raise SourceUnavailableError(f"Kafka does not answer: {error}") from error
