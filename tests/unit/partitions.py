"""Partitions, what Kafka and the ledger say of them, for tests of pure functions."""

from __future__ import annotations

from dataclasses import replace

from epochline.protocol.offsets import Head, TopicPartition
from epochline.protocol.planning import PartitionView


def tp(partition: int = 0, topic: str = "orders", topic_id: str = "id") -> TopicPartition:
    return TopicPartition(topic=topic, partition=partition, topic_id=topic_id)


def view(one: TopicPartition, start: int = 0, end: int = 10, **changes: int) -> PartitionView:
    whole = PartitionView(tp=one, log_start=start, last_stable=end, high_watermark=end, leader_epoch=3)
    return replace(whole, **changes)


def head(one: TopicPartition, next_offset: int = 0, epoch_id: int | None = None, origin: int = 0) -> Head:
    return Head(tp=one, origin=origin, next_offset=next_offset, epoch_id=epoch_id)
