"""Topics of tests: made, and read back by another client than the one that sends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from epochline.config.kafka import python_settings


def make_topic(settings: Mapping[str, str], name: str, partitions: int = 1, **configs: str) -> str:
    with closing(KafkaAdminClient(**python_settings(settings))) as admin:
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        admin.create_topics({name: wanted}, wait_for_metadata=True)
    return name


def delete_topic(settings: Mapping[str, str], name: str) -> None:
    with closing(KafkaAdminClient(**python_settings(settings))) as admin:
        if name not in admin.list_topics():
            return
        admin.delete_topics([name])
        deadline = time.monotonic() + 30
        while name in admin.list_topics():
            assert time.monotonic() < deadline, f"{name} is still there"
            time.sleep(0.1)


def read_topic(settings: Mapping[str, str], topic: str, isolation: str = "read_committed") -> list[Any]:
    """What kafka-python sees of a topic, partition by partition."""
    consumer = KafkaConsumer(**python_settings(settings), isolation_level=isolation, auto_offset_reset="earliest")
    with closing(consumer):
        keys = [KafkaPartition(topic, one) for one in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(keys)
        ends = consumer.end_offsets(keys)
        found: list[Any] = []
        deadline = time.monotonic() + 30
        while any(consumer.position(key) < ends[key] for key in keys):
            assert time.monotonic() < deadline, f"{topic} could not be read to {ends}"
            for records in consumer.poll(500).values():
                found += records
    return sorted(found, key=lambda record: (record.partition, record.offset))


def values(settings: Mapping[str, str], topic: str, isolation: str = "read_committed") -> list[bytes]:
    return [record.value for record in read_topic(settings, topic, isolation)]
