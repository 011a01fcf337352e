"""Partitions as Kafka and the ledger report them, for tests of pure functions."""

from epochline.protocol.offsets import Head, TopicPartition
from epochline.protocol.planning import PartitionView


def tp(partition: int = 0, topic: str = "orders", topic_id: str = "id") -> TopicPartition:
    return TopicPartition(topic=topic, partition=partition, topic_id=topic_id)


def view(one: TopicPartition, start: int = 0, end: int = 10, high_watermark: int | None = None) -> PartitionView:
    watermark = end if high_watermark is None else high_watermark
    return PartitionView(tp=one, log_start=start, last_stable=end, high_watermark=watermark, leader_epoch=3)


def head(
    one: TopicPartition, next_offset: int = 0, epoch_id: int | None = None, leader_epoch: int | None = None
) -> Head:
    return Head(tp=one, origin=0, next_offset=next_offset, epoch_id=epoch_id, leader_epoch=leader_epoch)
