"""Data-loss guards against a real broker: each loss is made there, as far as one broker can lose anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg2
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition

from epochline import KafkaSource
from epochline.coordinator import Plan, PlanOutcome, abort
from epochline.errors import DataLossError
from epochline.kafka.source import KafkaOffsets
from epochline.local.stack import Stack
from epochline.protocol.offsets import OffsetRange, PlannedRange
from epochline.protocol.planning import OpenTransaction
from tests.contract.worlds import World, orders, postgres_world, rows_of, run, seen_in


@pytest.fixture
def admin(kafka_bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as client:
        yield client


@pytest.fixture(autouse=True)
def _no_mirror_of_another_ledger(kafka_bootstrap: str) -> Iterator[None]:
    """Each test has a ledger of its own, and what another one mirrored would stop it."""

    def forget() -> None:
        with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as client:
            client.delete_groups(["epochline.orders"])

    if KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).mirrored("epochline.orders"):
        forget()
    yield
    forget()


@pytest.fixture
def topic(admin: KafkaAdminClient, topic_name: str) -> str:
    make_topic(admin, topic_name, 2)
    return topic_name


@pytest.fixture
def world(kafka_bootstrap: str, postgres_dsn: str, topic: str) -> World:
    return world_of(kafka_bootstrap, postgres_dsn, topic)


def world_of(bootstrap: str, dsn: str, topic: str) -> World:
    one = postgres_world(dsn)
    one.kafka = KafkaOffsets({"bootstrap.servers": bootstrap})  # type: ignore[assignment] # the same port, for real
    one.pipeline = orders(source=KafkaSource(topics=topic))
    return one


def make_topic(admin: KafkaAdminClient, name: str, partitions: int, **configs: str) -> None:
    admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}})
    admin.wait_for_topics([name])


def delete_topic(admin: KafkaAdminClient, name: str) -> None:
    admin.delete_topics([name])
    eventually(lambda: name not in admin.list_topics())


def eventually(check: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)


def produce(bootstrap: str, topic: str, partition: int, records: int, key: bytes | None = None) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, acks="all")) as producer:
        for future in [producer.send(topic, b"x", key=key, partition=partition) for _ in range(records)]:
            future.get(30)


def commit_visible(world: World, visible: int, who: str) -> Plan:
    """Plan and commit an epoch of one range, of whose offsets so many have a record that can be seen."""
    planned = world.plan(who)
    assert planned.epoch is not None
    [one] = planned.ranges
    ticket = world.begin(planned.epoch.epoch_id, who)
    assert ticket is not None
    seen = seen_in(one, received=visible, passed=visible)
    rows = rows_of(one)[:visible]
    assert world.writer.part(ticket, 0, {"orders": rows}, {(one.tp.topic, one.tp.partition): seen})
    assert world.writer.end(ticket)
    world.seal(ticket, who)
    world.commit(planned.epoch.epoch_id)
    return planned


def shown(planned: Plan) -> list[str]:
    return [str(one).split("-")[-1] for one in planned.ranges]


def test_what_retention_deleted_before_it_was_read_is_counted(
    world: World, admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """I11: per partition and in all."""
    for partition in (0, 1):
        produce(kafka_bootstrap, topic, partition, 3)
    world.to_committed()
    for partition in (0, 1):
        produce(kafka_bootstrap, topic, partition, 9)
    admin.delete_records({KafkaPartition(topic, 0): 5, KafkaPartition(topic, 1): 10})

    with pytest.raises(
        DataLossError,
        match=rf"{topic}-0: offsets \[3, 5\), 2 of them, .*{topic}-1: offsets \[3, 10\), 7 of them, .*9 offsets in all",
    ):
        world.plan("r2")
    assert world.heads() == {0: 3, 1: 3}


def test_what_retention_deleted_after_it_was_read_is_no_loss(
    world: World, admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """I11: up to the head itself."""
    produce(kafka_bootstrap, topic, 0, 3)
    world.to_committed()
    admin.delete_records({KafkaPartition(topic, 0): 3})

    assert world.plan("r2").outcome is PlanOutcome.NOTHING_TO_READ


def test_a_topic_that_was_deleted_stops_the_pipeline(
    world: World, admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """I11: "create it" would be the wrong advice for a topic that was read."""
    produce(kafka_bootstrap, topic, 0, 3)
    world.to_committed()
    delete_topic(admin, topic)

    with pytest.raises(DataLossError, match=f"no longer has the partitions {topic}-0, committed up to offset 3"):
        world.plan("r2")


def test_a_topic_made_again_with_more_records_and_fewer_partitions_stops_the_pipeline(
    world: World, admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """I11: nothing in the offsets shows it."""
    produce(kafka_bootstrap, topic, 0, 3)
    world.to_committed()
    delete_topic(admin, topic)
    make_topic(admin, topic, 1)
    produce(kafka_bootstrap, topic, 0, 30)

    with pytest.raises(DataLossError, match=f"made again with fewer: `epochline adopt-topic orders {topic}`"):
        world.plan("r2")


def test_a_topic_made_again_with_more_records_stops_the_pipeline(
    world: World, admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """I11."""
    produce(kafka_bootstrap, topic, 0, 3)
    world.to_committed()
    delete_topic(admin, topic)
    make_topic(admin, topic, 2)
    produce(kafka_bootstrap, topic, 0, 30)

    with pytest.raises(
        DataLossError,
        match=r"offset 3 of partition 0; offset 0 of partition 1 now means another record\. 3 offsets of the old topic"
        r" were committed;.*which holds 30 offsets in 2 partitions",
    ):
        world.plan("r2")


@pytest.mark.fault("F26")
def test_a_topic_made_again_between_plan_and_read_is_not_sealed_as_the_one_that_was_planned(
    world: World, admin: KafkaAdminClient, kafka_bootstrap: str, topic: str
) -> None:
    """INV-3: the new topic holds the planned offsets as well, and only its id tells it from the old one."""
    produce(kafka_bootstrap, topic, 0, 3)
    planned = world.plan("r1")
    ticket = world.begin(1, "r1")
    assert ticket is not None
    delete_topic(admin, topic)
    make_topic(admin, topic, 2)
    produce(kafka_bootstrap, topic, 0, 5)
    world.stage(planned, ticket)

    with pytest.raises(DataLossError, match=f"topic {topic} was deleted and made again .* nothing was sealed"):
        world.seal(ticket, "r1")

    abort(world.ledger, "orders", 1, run("r1"), reason="teardown")
    with pytest.raises(DataLossError, match=f"`epochline adopt-topic orders {topic}`"):
        world.plan("r2")
    assert world.heads() == {0: 0, 1: 0}


def test_another_cluster_stops_the_pipeline_though_it_has_no_such_topic(
    world: World, admin: KafkaAdminClient, kafka_bootstrap: str, topic: str, postgres_dsn: str
) -> None:
    """I11: the ledger is told of another cluster, as a moved connection would look."""
    produce(kafka_bootstrap, topic, 0, 3)
    world.to_committed()
    delete_topic(admin, topic)
    with closing(psycopg2.connect(postgres_dsn)) as session, session, session.cursor() as cursor:
        cursor.execute("UPDATE epochline.pipeline SET cluster_id = 'the old one'")

    with pytest.raises(
        DataLossError, match=r"its offsets, 3 of them .*, belong to Kafka cluster the old one, .*--cluster"
    ):
        world.plan("r2")


def test_a_restarted_broker_is_no_loss_and_a_log_truncated_below_the_head_is_one(
    world: World, stack: Stack, kafka_bootstrap: str, topic: str
) -> None:
    """I11: one broker cannot lose an election, so the ledger is told that it had read further.

    What Kafka then answers is what it answers after an unclean election: the former leader's log ends at 5, the new
    one's goes on from there, past the head.
    """
    produce(kafka_bootstrap, topic, 0, 5)
    first = world.to_committed()
    stack.kafka.stop()
    stack.kafka.start()  # On the port that it had, which `up` may give away.
    stack.kafka.wait()
    produce(kafka_bootstrap, topic, 0, 7)

    planned = world.plan("r2")
    assert shown(planned) == ["0[5, 12)"]
    assert planned.ranges[0].leader_epoch != first.ranges[0].leader_epoch

    assert planned.epoch is not None
    abort(world.ledger, "orders", planned.epoch.epoch_id, run("r2"), reason="a test says so")
    with world.ledger.transaction() as tx:
        assert tx.chain.advance(
            world.epoch(1),
            PlannedRange(
                tp=first.ranges[0].tp,
                range=OffsetRange(start=5, until=8),
                leader_epoch=first.ranges[0].leader_epoch,
            ),
        )

    with pytest.raises(
        DataLossError,
        match=f"{topic}-0 is committed up to offset 8, but the records of leader epoch .* now end at 5 .*: 3 offsets that were"
        " read have been truncated",
    ):
        world.plan("r3")


def test_a_hanging_transaction_is_named_by_its_producer_and_its_records_are_read_once_it_ends(
    world: World, kafka_bootstrap: str, topic: str
) -> None:
    """S13."""
    produce(kafka_bootstrap, topic, 0, 2)
    world.to_committed()
    with closing(
        KafkaProducer(
            bootstrap_servers=kafka_bootstrap,
            transactional_id=f"payments of {topic}",
            transaction_timeout_ms=77_000,
            acks="all",
        )
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).get(30)

        planned = world.plan("r2")

        assert planned.outcome is PlanOutcome.NOTHING_TO_READ
        [note] = planned.notes
        assert note.startswith(f"{topic}-0: an open transaction holds back offsets [2, 3); it began at offset 2")
        assert f"of transactional id 'payments of {topic}', at 20" in note
        assert note.endswith("with a time-out of 77 s")
        [one] = world.kafka.look(world.pipeline.source).partitions[0].open_transactions
        assert isinstance(one, OpenTransaction)
        assert one.last_write_at is not None
        producer.commit_transaction()

    assert shown(world.plan("r3")) == ["0[2, 4)"]


def test_gaps_that_transactions_leave_are_no_loss(world: World, kafka_bootstrap: str, topic: str) -> None:
    """S13: a head may stand behind a marker, and an epoch may read offsets without a record."""
    with closing(
        KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=f"tx-{topic}", acks="all")
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(3):
            producer.send(topic, b"x", partition=0).get(30)
        producer.commit_transaction()
        assert shown(commit_visible(world, 3, "r1")) == ["0[0, 4)"]

        producer.begin_transaction()
        producer.send(topic, b"x", partition=0).get(30)
        producer.abort_transaction()
        assert shown(commit_visible(world, 0, "r2")) == ["0[4, 6)"]

    assert world.plan("r3").outcome is PlanOutcome.NOTHING_TO_READ
    assert world.heads() == {0: 6, 1: 0}


def test_gaps_that_compaction_leaves_are_no_loss(
    admin: KafkaAdminClient, kafka_bootstrap: str, postgres_dsn: str, topic_name: str
) -> None:
    """S13: below the head, around it and above it."""
    compacted = f"{topic_name}-compacted"
    make_topic(
        admin,
        compacted,
        1,
        **{
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "100",
        },
    )
    world = world_of(kafka_bootstrap, postgres_dsn, compacted)
    produce(kafka_bootstrap, compacted, 0, 20, key=b"one")
    commit_visible(world, 20, "r1")
    produce(kafka_bootstrap, compacted, 0, 20, key=b"one")

    def records() -> int:
        # A segment is rolled by a record that comes after its time.
        produce(kafka_bootstrap, compacted, 0, 1, key=b"one")
        with closing(
            KafkaConsumer(bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=500)
        ) as consumer:
            consumer.assign([KafkaPartition(compacted, 0)])
            consumer.seek_to_beginning()
            return len({record.offset for record in consumer if record.offset < 40})

    eventually(lambda: records() < 20, seconds=90)

    planned = world.plan("r2")
    assert planned.ranges[0].range.start == 20
    assert planned.notes == ()
