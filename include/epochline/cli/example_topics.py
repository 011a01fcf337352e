"""Topics of the example programs: recreated for each run, and read at read_committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress


def recreate(bootstrap_servers: str, partitions: Mapping[str, int], *, forgotten: Iterable[str]) -> None:
    """Delete and create topics with these numbers of partitions, and delete the groups that read the old topics."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError, UnknownTopicOrPartitionError

    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        for topic in partitions:
            with suppress(UnknownTopicOrPartitionError):
                admin.delete_topics([topic])
        for group in forgotten:
            with suppress(KafkaError):
                admin.delete_groups([group])
        wanted = {topic: {"num_partitions": number, "replication_factor": 1} for topic, number in partitions.items()}
        admin.create_topics(wanted, wait_for_metadata=True)


def forget_markers(bootstrap_servers: str, pipeline: str, sinks: Iterable[str]) -> None:
    """Delete the control topic's markers of sinks that are recreated together with their ledger."""
    from kafka import KafkaAdminClient, KafkaProducer

    from epochline.declare.topic import CONTROL_TOPIC
    from epochline.kafka.markers import Marker

    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        if CONTROL_TOPIC not in admin.list_topics():
            return
    with closing(KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")) as producer:
        for sink in sinks:
            producer.send(CONTROL_TOPIC, key=Marker.key(pipeline, sink), value=None).get(30)


def committed_values(bootstrap_servers: str, topic: str) -> list[str]:
    """The values of a topic's committed records, as text."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level="read_committed", enable_auto_commit=False
    )
    with closing(consumer):
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        values: list[str] = []
        while any(consumer.position(one) < ends[one] for one in partitions):
            for records in consumer.poll(timeout_ms=1000).values():
                values += [(record.value or b"").decode() for record in records]
        return values
