"""A topic sink that sends each record to the topic that the record names, in one transaction, as its own function says (N4)."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from epochline import Json, KafkaSource, KafkaTopic, Pipeline
from epochline.errors import BadRecordError, SinkError
from epochline.kafka.topic_comparison import Isolation, TopicReader
from tests.integration.kafka_topics import configure, delete_topic
from tests.integration.sinks_world import SinksPipeline, in_process, new_topics, seen

COLUMNS = {"id": "integer", "to": "text"}
NewOrders = Callable[..., "Orders"]


class Orders(SinksPipeline):
    """Orders that go to one of two topics."""

    def order(self, *pairs: tuple[int, str | None]) -> None:
        self.produce(*(json.dumps({"id": number, "to": to}) for number, to in pairs))

    def ids(self, isolation: str = "read_committed") -> list[list[int]]:
        return [
            sorted(json.loads(one.value or "")["id"] for one in seen(self.bootstrap, topic, isolation))
            for topic in self.topics
        ]


@pytest.fixture
def orders(postgres_dsn: str, kafka_bootstrap: str) -> NewOrders:
    def make(*, bad_records: str = "quarantine", partitions: Sequence[int] = (2, 2), **topic: Any) -> Orders:
        named = zip((2, *partitions), ("in", "eu", "us"), strict=True)
        source, *out = (new_topics(kafka_bootstrap, partitions=n, names=[name])[0] for n, name in named)
        fields = {"value": Json(columns=COLUMNS), "key": "id", "topic_column": "to"} | topic
        sink = KafkaTopic(topic=out[0], other_topics=out[1], **fields)
        read = {"source": KafkaSource(topics=source), "parse": Json(columns=COLUMNS)}
        pipeline = Pipeline(name=source, sinks=sink, bad_records=bad_records, **read)
        it = in_process(postgres_dsn, kafka_bootstrap, pipeline).create()
        return Orders(it=it, bootstrap=kafka_bootstrap, source=source, topics=tuple(out))

    return make


@pytest.mark.parametrize("place", ["topic.record@6", "topic.commit", "topic.committed"])
def test_each_record_is_once_in_its_topic_although_the_publisher_is_killed(orders: NewOrders, place: str) -> None:
    """N4, P9, INV-5: killed between the two topics, before the commit of their transaction, and after it."""
    world = orders()
    eu, us = world.topics
    produced = [(number, eu if number % 3 else us) for number in range(10)]
    world.order(*produced)
    world.it.epoch()

    world.killed_at(place)
    there = world.ids()
    world.it.publish()

    expected = [[number for number, to in produced if to == topic] for topic in world.topics]
    assert there in ([[], []], expected), "one transaction: a consumer sees both topics' records, or none"
    assert world.ids() == expected
    for topic, ids in zip(world.topics, expected, strict=True):
        with TopicReader({"bootstrap.servers": world.bootstrap}, topic, list(Isolation)) as reader:
            reader.read()
            compared = reader.result()
        committed = compared.seen[Isolation.READ_COMMITTED]
        assert (committed.total, committed.repeats, committed.repeated_keys) == (len(ids), 0, 0)
        assert all(hidden.undecided == 0 for hidden in (compared.hidden or {}).values())
    assert [(epoch, state) for epoch, _, state in world.receipts()] == [(1, "SHOWN")]
    assert world.outbox() == 0


def test_a_record_that_names_no_declared_topic_is_quarantined_with_the_reason(orders: NewOrders) -> None:
    """N4, INV-9, SEC-5: it is not dropped, and the reason names the declared topics and not the value."""
    world = orders()
    eu, us = world.topics

    world.order((1, eu), (2, "elsewhere"), (3, None), (4, us))
    world.it.epoch()
    world.it.publish()

    assert world.ids() == [[1], [4]]
    reasons = world.it.sql('SELECT reason FROM epochline.quarantine ORDER BY "offset", partition')
    assert reasons == [(f"kafka:{eu}: to names none of the declared topics ({eu}, {us})",)] * 2


def test_a_record_that_names_no_declared_topic_fails_the_epoch_where_bad_records_do(orders: NewOrders) -> None:
    world = orders(bad_records="fail")
    world.order((1, world.topics[0]), (2, "elsewhere"))

    with pytest.raises(BadRecordError, match="to names none of the declared topics"):
        world.it.epoch()

    assert world.ids("read_uncommitted") == [[], []]


def test_a_topic_of_the_list_that_is_missing_is_refused_before_anything_is_planned(orders: NewOrders) -> None:
    world = orders()
    delete_topic(world.bootstrap, world.topics[1])
    world.order((1, world.topics[0]))

    with pytest.raises(SinkError, match=f"has no topic {world.topics[1]}. Nothing was planned"):
        world.it.epoch()


def test_each_topic_takes_partitions_and_sizes_of_its_own(orders: NewOrders) -> None:
    """P9: the seal asks each topic of the list whether it takes the records that are for it."""
    world = orders(partitions=(8, 2), partition="id")
    eu, us = world.topics
    world.order((7, eu), (1, us))
    world.it.epoch()
    world.it.publish()
    assert world.ids() == [[7], [1]]

    world.order((7, us))
    with pytest.raises(SinkError, match=f"a record is for partition 7, but {us} has 2"):
        world.it.epoch()


def test_a_record_too_large_for_its_own_topic_is_refused_by_the_seal(orders: NewOrders) -> None:
    """P9: the other topic of the list takes it."""
    world = orders()
    eu, us = world.topics
    configure(world.bootstrap, us, **{"max.message.bytes": "20"})
    world.order((1, eu))
    world.it.epoch()

    world.order((2, us))
    with pytest.raises(SinkError, match=f"max.message.bytes of {us} is 20"):
        world.it.epoch()


def test_an_at_least_once_sink_sends_to_each_topic_too(orders: NewOrders) -> None:
    world = orders(semantics="at_least_once")
    world.order((1, world.topics[0]), (2, world.topics[1]))
    world.it.epoch()

    world.it.publish()

    assert world.ids() == [[1], [2]]


def test_a_function_makes_key_value_and_headers_of_each_record(orders: NewOrders) -> None:
    """N4: bytes as the function gave them, in the topic that the record names; its error makes a bad record."""
    world = orders(value="tests.functions.serializing:packed", columns=COLUMNS, key=())
    eu, us = world.topics

    world.order((1, eu), (2, us), (13, us))
    world.it.epoch()
    world.it.publish()

    found = [[(one.key, one.value, one.headers) for one in seen(world.bootstrap, topic)] for topic in world.topics]
    assert found == [
        [("order 1", "\x01\x00\x00\x00", (("to", eu.encode()), ("none", None)))],
        [("order 2", "\x02\x00\x00\x00", (("to", us.encode()), ("none", None)))],
    ]
    assert world.it.sql("SELECT reason FROM epochline.quarantine") == [(f"kafka:{eu}: thirteen is not sent",)]
