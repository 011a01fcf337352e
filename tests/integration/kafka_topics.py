"""Topics of tests on a real Kafka: made, filled, cut, deleted, and read back by another client than the product's."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType, TransactionState
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

from epochline.config.kafka import python_settings
from tests.waiting import wait_for

_STARTING = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)
"""What a broker that has just started answers, which has no coordinator yet."""

Servers = str | Mapping[str, str]
"""Addresses of brokers, or the settings of a connection to them."""


def _client(servers: Servers) -> dict[str, Any]:
    return python_settings({"bootstrap.servers": servers} if isinstance(servers, str) else servers)


@contextmanager
def admin_of(servers: Servers) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(**_client(servers))) as admin:
        yield admin


def make_topic(servers: Servers, name: str, partitions: int = 1, **configs: str) -> str:
    with admin_of(servers) as admin:
        wanted = {"num_partitions": partitions, "replication_factor": -1, "configs": configs}
        admin.create_topics({name: wanted}, wait_for_metadata=True)
    return name


def delete_topic(servers: Servers, name: str) -> None:
    """Delete a topic, if it exists, and wait until Kafka no longer lists it."""
    with admin_of(servers) as admin:
        if name in admin.list_topics():
            admin.delete_topics([name])
            wait_for(f"{name} is deleted", lambda: name not in admin.list_topics())


def delete_records(servers: Servers, topic: str, before: Mapping[int, int]) -> None:
    """Delete the records of each partition before an offset, as retention does."""
    with admin_of(servers) as admin:
        admin.delete_records({KafkaPartition(topic, partition): offset for partition, offset in before.items()})


def configure(servers: Servers, topic: str, **configs: str) -> None:
    """Change settings of a topic."""
    with admin_of(servers) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])


def group_offsets(servers: Servers, group: str) -> dict[int, int]:
    """By partition, the offset that a consumer group of one topic holds."""

    def answered() -> Any:
        # Not by librdkafka, which ends the process where a broker answers so (confluentinc/librdkafka issue 5040).
        with suppress(*_STARTING):
            return admin.list_group_offsets(group)
        return None

    with admin_of(servers) as admin:
        found = wait_for(f"a broker coordinates {group}", answered)[group]
    return {key.partition: held.offset for key, held in found.items()}


def produce(servers: Servers, topic: str, values: Iterable[bytes | None], **options: Any) -> None:
    """Send each value with the same options of `KafkaProducer.send` and wait until Kafka has all of them."""
    with closing(KafkaProducer(**_client(servers), acks="all", enable_idempotence=True)) as producer:
        for sent in [producer.send(topic, value=value, **options) for value in values]:
            sent.get(30)


def produce_orders(bootstrap: str, topic: str, numbers: Iterable[int], partitions: int) -> None:
    """Send an order of each number, which is its id, by the fastest client, one after the other to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "enable.idempotence": True})
    for number in numbers:
        value = f'{{"id": {number}, "customer": "customer {number % 1000}", "amount": "{number % 100000}.25"}}'
        while True:
            try:
                producer.produce(topic, value.encode(), partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


@contextmanager
def transactional_producer(servers: Servers, transactional_id: str, **options: Any) -> Iterator[KafkaProducer]:
    """A producer that may begin a transaction."""
    settings = {"transactional_id": transactional_id, "acks": "all", **options}
    with closing(KafkaProducer(**_client(servers), **settings)) as producer:
        producer.init_transactions()
        yield producer


def markers_written(servers: Servers) -> None:
    """Wait until what a transaction's end decided is so in each partition: Kafka answers the producer before that."""
    decided = [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT]

    def every_marker_is_written() -> bool:
        with suppress(*_STARTING):
            return not any(admin.list_transactions(state_filters=decided).values())
        return False

    with admin_of(servers) as admin:
        wait_for("the markers of every decided transaction are written", every_marker_is_written)


def read_topic(servers: Servers, topic: str, isolation: str = "read_committed") -> list[Any]:
    """What kafka-python sees of a topic, partition by partition."""
    if isolation == "read_committed":
        markers_written(servers)
    consumer = KafkaConsumer(**_client(servers), isolation_level=isolation, auto_offset_reset="earliest")
    with closing(consumer):
        keys = [KafkaPartition(topic, one) for one in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(keys)
        ends = consumer.end_offsets(keys)
        found: list[Any] = []

        def read_to_the_end() -> bool:
            if all(consumer.position(key) >= ends[key] for key in keys):
                return True
            for records in consumer.poll(100).values():
                found.extend(records)
            return False

        wait_for(f"{topic} is read to {ends}", read_to_the_end, seconds=120)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def span_of_timestamps(servers: Servers, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Any]:
    """By partition, the oldest and the newest of Kafka's timestamps between two offsets, as times."""
    found = {}
    for partition, (start, until) in ranges.items():
        read = [one for one in read_topic(servers, topic) if one.partition == partition and start <= one.offset < until]
        found[partition] = tuple(
            datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at)
            for at in (min(one.timestamp for one in read), max(one.timestamp for one in read))
        )
    return found


def values(servers: Servers, topic: str, isolation: str = "read_committed") -> list[bytes]:
    return [record.value for record in read_topic(servers, topic, isolation)]


@dataclass(frozen=True)
class Topic:
    """One topic on a real Kafka; its text is its name."""

    servers: Servers
    name: str

    def __str__(self) -> str:
        return self.name

    def make(self, partitions: int = 1, **configs: str) -> Self:
        make_topic(self.servers, self.name, partitions, **configs)
        return self

    def make_again(self, partitions: int) -> None:
        """Delete the topic and make another one of the same name."""
        self.delete()
        self.make(partitions)

    def delete(self) -> None:
        delete_topic(self.servers, self.name)

    def produce(self, partition: int, records: int, **options: Any) -> None:
        """Append equal records to a partition."""
        produce(self.servers, self.name, [b"x"] * records, partition=partition, **options)

    def delete_records(self, before: Mapping[int, int]) -> None:
        delete_records(self.servers, self.name, before)

    def transactional_producer(self, **options: Any) -> Any:
        return transactional_producer(self.servers, f"tx-{self.name}", **options)
