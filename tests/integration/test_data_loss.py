"""Data-loss guards against a real broker: each loss is made there, as far as one broker can lose anything."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from epochline import KafkaSource
from epochline.cli import database
from epochline.cli.standing import overview_of, standing_of
from epochline.coordinator import Plan, PlanOutcome, abort
from epochline.errors import DataLossError, KafkaBehindError
from epochline.kafka.source import KafkaOffsets
from epochline.local.stack import Stack
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.planning import OpenTransaction
from tests.contract.operators import act, heads
from tests.contract.worlds import World, orders, postgres_world, ranges, run
from tests.driver import epoch_of
from tests.integration.kafka_topics import Topic, admin_of, markers_written
from tests.waiting import wait_for
from tests.ways import way_on


@pytest.fixture(autouse=True)
def _no_mirror_of_another_ledger(kafka_bootstrap: str) -> Iterator[None]:
    """Each test has a ledger of its own, and what another one mirrored would stop it."""

    def forget() -> None:
        if KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).mirrored("epochline.orders"):
            with admin_of(kafka_bootstrap) as admin:
                admin.delete_groups(["epochline.orders"])

    forget()
    yield
    forget()


@pytest.fixture
def world(postgres_dsn: str, topic: Topic) -> World:
    one = postgres_world(postgres_dsn)
    one.source = KafkaOffsets({"bootstrap.servers": str(topic.servers)})  # type: ignore[assignment] # the same port, for real
    one.pipeline = orders(source=KafkaSource(topics=topic.name))
    return one


@pytest.fixture
def read(world: World, topic: Topic) -> World:
    """The first three records of partition 0 are read and committed."""
    topic.produce(0, 3)
    world.to_committed()
    return world


def shown(planned: Plan) -> list[str]:
    return [one.rpartition("-")[2] for one in ranges(planned)]


def states(world: World, dsn: str) -> tuple[dict[int, str], str | None]:
    """What `epochline lag` shows: the state of each partition, and the command that goes on."""
    with database.session(dsn) as ledger:
        standing = standing_of(world.pipeline, overview_of(world.pipeline, ledger), ledger, world.kafka)
    return {row["partition"]: row["state"] for row in standing.partitions}, way_on(standing.reason or "")


def test_retention_of_read_records_is_no_loss_and_a_deleted_topic_is(
    read: World, topic: Topic, postgres_dsn: str
) -> None:
    """The advice to create the topic would be wrong for a topic that was read."""
    topic.delete_records({0: 3})
    assert read.plan("r2").outcome is PlanOutcome.NOTHING_TO_READ
    assert states(read, postgres_dsn) == ({0: "caught up", 1: "caught up"}, None)

    topic.delete()
    with pytest.raises(DataLossError, match=f"no longer has the partitions {topic}-0, committed up to offset 3"):
        read.plan("r3")
    assert states(read, postgres_dsn) == ({0: "topic gone", 1: "topic gone"}, f"adopt-topic orders {topic} --reason …")


def test_one_command_goes_on_after_a_topic_was_made_again_with_which_kafka_deleted_the_offsets_of_the_group(
    read: World, topic: Topic
) -> None:
    """INV-8: that they are gone is no evidence of a Kafka that went back in time; of another topic it stays evidence."""
    group = "epochline.orders"
    wait_for("the offsets are mirrored", lambda: read.kafka.mirrored(group), 30)
    topic.make_again(2)
    topic.produce(0, 4)
    wait_for("they are deleted with the topic", lambda: not read.kafka.mirrored(group), 60)
    with pytest.raises(DataLossError, match="adopt-topic"):
        read.plan("r2")

    act(read, "adopt-topic", topic=str(topic))

    read.to_committed("r3")
    assert heads(read, 2) == {f"{topic}-0": 4, f"{topic}-1": 0}
    with admin_of(topic.servers) as admin:
        admin.delete_groups([group])
    topic.produce(0, 1)
    with pytest.raises(KafkaBehindError, match="holds no offset"):
        read.plan("r4")


@pytest.mark.fault("F26")
def test_a_topic_made_again_between_plan_and_read_is_not_sealed_as_the_one_that_was_planned(
    world: World, topic: Topic
) -> None:
    """INV-3: the new topic holds the planned offsets as well, and only its id tells it from the old one."""
    topic.produce(0, 3)
    planned = world.plan("r1")
    ticket = world.attempt(planned, "r1")
    topic.make_again(2)
    topic.produce(0, 5)
    world.stage(planned, ticket)

    with pytest.raises(DataLossError, match=f"topic {topic} was deleted and made again .* nothing was sealed"):
        world.seal(ticket, "r1")

    abort(world.ledger, "orders", 1, run("r1"), reason="teardown")
    with pytest.raises(DataLossError, match=f"`epochline adopt-topic orders {topic} --reason …`$"):
        world.plan("r2")
    assert world.heads() == {0: 0, 1: 0}


def test_a_restarted_broker_is_no_loss_and_a_log_truncated_below_the_head_is_one(
    world: World, stack: Stack, topic: Topic, postgres_dsn: str, as_superuser: Callable[..., None]
) -> None:
    """I11: one broker cannot lose an election, so the ledger is made to say that it had read further.

    What Kafka then answers is what it answers after an unclean election: the former leader's log ends at 5, the new
    one's goes on from there, past the head.
    """
    topic.produce(0, 5)
    first = world.to_committed()
    stack.kafka.stop()
    stack.kafka.start()  # On the port that it had, which `up` may give away.
    stack.kafka.wait()
    topic.produce(0, 7)

    planned = world.plan("r2")
    assert shown(planned) == ["0[5, 12)"]
    assert planned.ranges[0].leader_epoch != first.ranges[0].leader_epoch

    abort(world.ledger, "orders", epoch_of(planned).epoch_id, run("r2"), reason="a test says so")
    with world.ledger.transaction() as tx:
        assert tx.chain.advance(world.epoch(1), replace(first.ranges[0], range=OffsetRange(start=5, until=8)))
    further = "UPDATE epochline.planned_range SET until_offset = 8 WHERE epoch_id = 1 AND partition = 0"
    as_superuser("SET session_replication_role = replica", further)

    said = f"{topic}-0 is committed up to offset 8, but the records of leader epoch .* now end at 5 .*"
    with pytest.raises(DataLossError, match=f"{said}: 3 offsets that were read have been truncated"):
        world.plan("r3")
    adopt = f"adopt-topic orders {topic} --reason …"
    assert states(world, postgres_dsn) == ({0: "log truncated", 1: "stands"}, adopt)


def test_a_hanging_transaction_is_named_by_its_producer_and_its_records_are_read_once_it_ends(
    world: World, topic: Topic
) -> None:
    """S13."""
    topic.produce(0, 2)
    world.to_committed()
    with topic.transactional_producer(transaction_timeout_ms=77_000) as producer:
        producer.begin_transaction()
        producer.send(topic.name, b"open", partition=0).get(30)

        planned = world.plan("r2")

        assert planned.outcome is PlanOutcome.NOTHING_TO_READ
        [note] = planned.notes
        assert note.startswith(f"{topic}-0: an open transaction holds back offsets [2, 3); it began at offset 2")
        assert f"of transactional id 'tx-{topic}', at 20" in note
        assert note.endswith("with a time-out of 1 min 17 s")
        view = world.kafka.look(world.pipeline.source)
        [one] = view.partitions[0].open_transactions
        assert isinstance(one, OpenTransaction)
        assert one.last_write_at is not None
        assert view.invisible_allowed == frozenset(), "INV-9: a producer that the broker knows explains no gap"
        producer.commit_transaction()
    markers_written(topic.servers)

    assert shown(world.plan("r3")) == ["0[2, 4)"]
