"""Change data capture under kill -9: at every committed epoch the target is the source table (E6's order, F1)."""

import random

import pytest

from epochline import KafkaSource
from tests.integration.shop import DECLARED, Record, Shop, orders_in
from tests.integration.sinks_world import SinksPipeline, in_process, new_topics, producer_to

KILLS = (
    "begin.committed", "write.copy", "write.commit", "write.committed", "manifest.committed",
    "seal.commit.2", "seal.committed.2", "commit.targets.apply", "commit.commit", "commit.committed",
)  # fmt: skip
PARTITIONS = 3


@pytest.mark.slow  # test_cdc_orders kills attempts too, without Kafka and processes of their own
def test_the_target_is_the_source_table_after_every_killed_epoch(postgres_dsn: str, kafka_bootstrap: str) -> None:
    """A process dies at each step in turn; keys move between partitions; the connector repeats its last records."""
    (topic,) = new_topics(kafka_bootstrap, partitions=PARTITIONS, names=("cdc",))
    changes = {"name": topic, "source": KafkaSource(topics=topic), "writer_connection": None}
    it = in_process(postgres_dsn, kafka_bootstrap, DECLARED.model_copy(update=changes))
    it.create()
    world = SinksPipeline(it=it, bootstrap=kafka_bootstrap, source=topic)
    shop = Shop(random.Random(7))
    for number, kill in enumerate(KILLS):
        sent = [shop.change() for _ in range(12)]
        _send(kafka_bootstrap, topic, [*sent, *sent[-2:]], shop.rng)  # at least once, as Debezium promises
        world.killed_at(kill, "epoch", RUN=f"run-{number}")
        world.done("epoch", RUN=f"run-{number}")

        assert orders_in(it) == shop.orders, kill


def _send(bootstrap: str, topic: str, changes: list[list[Record]], rng: random.Random) -> None:
    producer = producer_to(bootstrap)
    for records in changes:
        partition = rng.randrange(PARTITIONS)  # as after a change of the topic's partitions: not by the key
        for key, value in records:
            producer.produce(topic, key=key, value=value, partition=partition)
    assert producer.flush(30) == 0
