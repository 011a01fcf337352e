"""What Kafka holds of topics now, for audits and previews."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError
from kafka.protocol.consumer import IsolationLevel

from epochline.config.kafka import python_settings
from epochline.errors import SourceError, SourceUnavailableError
from epochline.kafka.client_log import shorten_log
from epochline.kafka.records import ReadSession, RecordReader
from epochline.protocol.log_ends import HeldLog

shorten_log()


@dataclass(frozen=True, slots=True)
class TopicLogs:
    """Topics as an audit or a preview reads them.

    Args:
        settings: what `epochline.config.kafka.broker_settings` gave.
        patience: how long a read waits for the next record, in seconds.
    """

    settings: Mapping[str, str] = field(repr=False)
    patience: float = 120

    @contextmanager
    def session(self) -> Iterator[ReadSession]:
        """Opens a consumer, as `epochline.kafka.records.RecordReader` does."""
        with RecordReader(self.settings, self.patience).session() as session:
            yield session

    def held(self, topics: Sequence[str]) -> Mapping[tuple[str, int], HeldLog]:
        """See `topic_logs`."""
        return topic_logs(self.settings, topics)


def topic_logs(settings: Mapping[str, str], topics: Sequence[str]) -> dict[tuple[str, int], HeldLog]:
    """The logs of those topics that exist, by topic and partition, up to the last stable offset.

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
    ids = {topic["name"]: str(topic["topic_id"]) for topic in known}
    return {
        (key.topic, key.partition): HeldLog(
            identity=ids[key.topic],
            start=starts[key].offset,
            end=ends[key].offset,
            compacted="compact" in configs[key.topic]["cleanup.policy"]["value"],
        )
        for key in keys
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
