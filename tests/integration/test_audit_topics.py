"""`epochline audit` of topics that a pipeline writes, on real servers: each record is one that its epochs should show."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from epochline import Json, KafkaTopic, Text
from tests.integration.auditing import ORDER, Audit
from tests.integration.kafka_topics import (
    configure,
    delete_records,
    delete_topic,
    make_topic,
    produce,
    transactional_producer,
)
from tests.integration.sinks_world import SinksPipeline, new_world

COLUMNS = {"k": "text", "n": "bigint", "note": "text"}
OUT = KafkaTopic(
    topic="out", value=Json(columns={"n": "bigint"}), key="k", headers={"note": "note"}, columns=COLUMNS,
)  # fmt: skip
LINES = KafkaTopic(topic="out", value=Text())

NewWorld = Callable[..., SinksPipeline]


@pytest.fixture
def new(postgres_dsn: str, kafka_bootstrap: str) -> NewWorld:
    return partial(new_world, postgres_dsn, kafka_bootstrap, parse=Json(columns=COLUMNS), table=False)


def record(number: int, **changes: Any) -> str:
    return json.dumps({"k": f"key {number % 5}", "n": number, "note": None if number % 3 else "é"} | changes)


def numbers(world: SinksPipeline, *those: int) -> None:
    world.produce(*map(record, those))


def published(world: SinksPipeline, *those: int) -> None:
    numbers(world, *those)
    world.it.epoch()
    world.it.publish()


@pytest.fixture
def world(new: NewWorld) -> SinksPipeline:
    """Epochs 2 and 3: an operator aborted epoch 1, and the publisher of epoch 2 died twice."""
    one = new(OUT, bad_records="quarantine")
    numbers(one, *range(10))
    one.produce("{poison")
    _, run, _ = one.it.staged()
    one.it.abort(1, run.run_id)
    one.it.epoch()
    one.killed_at("topic.commit")
    one.killed_at("topic.committed")
    one.it.publish()
    published(one, *range(10, 20))
    return one


@pytest.mark.slow
def test_a_topic_is_exact_after_aborts_retries_and_dead_publishers(world: SinksPipeline, audit: Audit) -> None:
    """INV-5, INV-9: records of aborted transactions are none; an epoch that is not published yet is said to be so."""
    assert audit(world) == (0, [], [])
    numbers(world, 20, 21)
    world.it.epoch()

    code, differences, notes = audit(world)

    assert (code, differences) == (0, [])
    assert notes == [
        f"{OUT.model_copy(update={'topic': world.topics[0]}).name}: 2 records of epochs that are not yet shown"
    ]
    world.it.publish()
    assert audit(world) == (0, [], [])


def test_records_that_were_sent_as_the_pipeline_are_named_by_their_place(world: SinksPipeline, audit: Audit) -> None:
    """One that no epoch gave, one that stands twice, and one in place of another: by who has the sink's id in Kafka."""
    (topic,) = world.it.pipeline.topics
    again = next(one for one in world.seen() if one.value == '{"n":3}')
    with transactional_producer(world.bootstrap, topic.transactional_id(world.it.pipeline.name)) as forger:
        forger.begin_transaction()
        forger.send(topic.topic, b'{"n":99}', key=b"stranger", partition=0)
        headers = list(again.headers)
        forger.send(topic.topic, b'{"n":3}', key=str(again.key).encode(), headers=headers, partition=again.partition)
        forger.flush()
        forger.commit_transaction()

    code, differences, _ = audit(world)

    assert code == 1  # and nothing else, although an epoch was aborted and two publishers died
    ends = {one.value: (one.partition, one.offset) for one in world.seen()}
    assert sorted(differences) == [
        (topic.name, "doubled", *ends['{"n":3}'], None), (topic.name, "extra", *ends['{"n":99}'], None),
    ]  # fmt: skip


@pytest.mark.slow
def test_records_of_another_program_are_counted_and_are_no_difference(world: SinksPipeline, audit: Audit) -> None:
    """But one that equals a record of the pipeline is one too many for every consumer."""
    (topic,) = world.it.pipeline.topics
    produce(world.bootstrap, topic.topic, [b"theirs", None], key=b"theirs", partition=1)
    place = max(one.offset for one in world.seen() if one.partition == 1) - 1

    code, differences, notes = audit(world)

    assert (code, differences) == (0, [])
    assert notes == [f"{topic.name}: 2 records of another program, the first at {topic.topic}-1 offset {place}"]
    produce(world.bootstrap, topic.topic, [b'{"n":3}'], key=b"key 3", headers=[("note", "é".encode())], partition=0)
    assert [one[1] for one in audit(world)[1]] == ["doubled"]


@pytest.mark.slow
def test_records_that_a_topic_lacks_are_named_by_the_record_that_gave_them(world: SinksPipeline, audit: Audit) -> None:
    """An outbox that lost a row and one that was altered, behind the back of the count; then a topic that is gone."""
    (topic,) = world.it.pipeline.topics
    (box,) = world.it.pipeline.outboxes
    table = box.table.replace(".", '"."')
    numbers(world, 30, 31, 32, 33)
    world.it.epoch()
    world.it.sql(f"UPDATE \"{table}\" SET value = '{{\"n\":77}}' WHERE _partition = 0 AND value LIKE '%%30%%'")
    world.it.sql(f"UPDATE \"{table}\" SET key = 'x', value = '{{\"n\":78}}' WHERE value LIKE '%%31%%'")
    world.it.publish()

    code, differences, _ = audit(world)

    assert code == 1
    said = f"value; record of {world.source}-0 offset 11"
    ends = {one.value: (one.partition, one.offset) for one in world.seen()}
    assert sorted(differences, key=str) == sorted(
        [
            (topic.name, "changed", *ends['{"n":77}'], said), (topic.name, "extra", *ends['{"n":78}'], None),
            (topic.name, "missing", 1, 10, None),
        ],
        key=str,
    )  # fmt: skip
    delete_topic(world.bootstrap, topic.topic)
    code, differences, _ = audit(world)
    assert code == 1
    assert differences[0] == (topic.name, "missing", None, None, f"Kafka has no topic {topic.topic}")
    assert len(differences) == 25


@pytest.mark.slow
def test_what_a_topic_does_not_retain_is_not_judged(world: SinksPipeline, audit: Audit) -> None:
    """Its start moved on: what it holds is compared, and an epoch after the cut must be there wholly."""
    (topic,) = world.it.pipeline.topics
    first = min(one.offset for one in world.seen() if one.partition == 0)
    delete_records(world.bootstrap, topic.topic, {0: first + 1})

    code, differences, notes = audit(world)

    assert (code, differences) == (3, [])
    assert notes == [f"{topic.name}: not compared wholly: 1 record not retained: the topic was cut off at its start"]
    delete_records(world.bootstrap, topic.topic, {0: max(one.offset for one in world.seen() if one.partition == 0)})
    assert audit(world)[:2] == (3, [])
    configure(world.bootstrap, topic.topic, **{"cleanup.policy": "compact"})
    assert audit(world)[:2] == (3, [])


@pytest.mark.slow
def test_some_epochs_alone_are_compared_with_what_a_topic_lacks(world: SinksPipeline, audit: Audit) -> None:
    """Records of the other epochs are none too many; their number is."""
    code, differences, notes = audit(world, "--epochs", "2")

    assert (code, differences) == (3, [])
    assert "values of 1 epoch not compared" in notes[0]
    (topic,) = world.it.pipeline.topics
    delete_topic(world.bootstrap, topic.topic)
    make_topic(world.bootstrap, topic.topic, 2)

    code, differences, _ = audit(world, "--epochs", "2")

    assert code == 1
    said = "1 epoch showed 10 rows whose values are not compared, 0 records are there"
    assert (topic.name, "count", None, None, said) in differences
    assert [one[1] for one in differences].count("missing") == 10


@pytest.mark.slow
def test_a_topic_whose_brokers_do_not_answer_is_not_judged(
    world: SinksPipeline, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the audit goes on."""
    monkeypatch.setattr("epochline.kafka.source._PATIENCE_SECONDS", 1)
    declared = world.it.pipeline
    (topic,) = declared.topics
    moved = topic.model_copy(update={"connection": "elsewhere"})
    world.it.pipeline = declared.model_copy(update={"sinks": (moved,)})
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", "kafka://127.0.0.1:9")
    numbers(world, 50)
    planned, run = world.it.planned()
    world.it.finish(planned, run)

    code, differences, notes = audit(world)

    assert (code, differences) == (3, [])
    assert "does not answer" in notes[-1]


@pytest.mark.slow
def test_topics_without_keys_transactions_or_one_name_are_compared(new: NewWorld, audit: Audit) -> None:
    """A topic for each record, tombstones; and one that may repeat records says so."""
    plain = LINES.model_copy(update={"semantics": "at_least_once"})
    world = new(plain, parse=Text())
    world.epoch("a", None, "b", "a")
    world.killed_at("topic.sent")
    world.it.publish()

    code, differences, notes = audit(world)

    assert (code, differences) == (0, [])
    assert notes == [f"{world.it.pipeline.topics[0].name}: 4 records repeated; the topic is at_least_once"]


@pytest.mark.slow
def test_a_requeued_record_is_expected_of_its_requeue(new: NewWorld, audit: Audit) -> None:
    world = new(OUT, bad_records="quarantine")
    world.produce(record(1), record(2, n="x"))
    world.it.epoch()
    world.it.publish()
    assert audit(world) == (0, [], [])
    world.it.sql("UPDATE epochline.quarantined_record SET value = %s", record(2).encode())
    planned, run = (
        world.it.order("requeue", ORDER, "an operator's", everything=True, out_of_order=True),
        world.it.run_of("an operator's"),
    )
    world.it.finish(planned, run)
    world.it.publish()

    assert len(world.seen()) == 2
    assert [one[0] for one in audit(world)[1]] == ["quarantine"]  # the bytes that were changed above
