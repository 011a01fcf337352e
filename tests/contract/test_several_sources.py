"""Several sources over both ledgers: each keeps its own chain and its own guards, and an epoch holds all of them (N7)."""

import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from epochline import FromGroup, FromOffsets, FromTimestamp, Input, KafkaSource, Sources, Text
from epochline.coordinator import PlanOutcome
from epochline.errors import (
    ChangeRefusedError,
    DataLossError,
    KafkaBehindError,
    LedgerBehindError,
    SourceUnavailableError,
    TopicMissingError,
)
from epochline.operations import refresh_log_ends
from epochline.operations.replay import plan_replay, promote
from epochline.protocol.epoch import Interval
from epochline.protocol.mirror import MirroredOffset
from epochline.sources.several import SeveralOffsets
from tests.contract.operators import ORDER, act, heads, ordered, origins, preview_of, refusal_of
from tests.contract.worlds import World, orders, postgres_world, ranges, run
from tests.databases import query
from tests.driver import epoch_of
from tests.in_memory.kafka import FakeKafka

GROUP = "epochline.orders"
DAY = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class Two:
    """A world whose pipeline reads two clusters, with topics of one name and one id."""

    world: World
    shop: FakeKafka
    crm: FakeKafka

    def declare(self, **inputs: KafkaSource) -> None:
        """The inputs of the pipeline from now on; an input named crm reads the cluster crm."""
        sources = Sources(
            inputs={
                name: Input(source=one if name != "crm" else crm(one), parse=Text()) for name, one in inputs.items()
            },
            records_per_epoch=1000,
        )
        clusters = {name: self.crm if name.startswith("crm") else self.shop for name in inputs}
        self.world.pipeline = orders(source=sources, parse=None, transform="drawing:draw")
        self.world.source = SeveralOffsets(sources, clusters)  # type: ignore[assignment]

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        """The records whose rows are in the target, by topic, partition and offset."""
        return [(of, partition, offset) for of, partition, offset, _ in self.world.visible()]


def topic(**fields: Any) -> KafkaSource:
    return KafkaSource(topics="t", **fields)


def crm(source: KafkaSource) -> KafkaSource:
    """The source with a connection of its own, unless it names one."""
    return source if source.connection != topic().connection else source.model_copy(update={"connection": "crm_kafka"})


@pytest.fixture
def two(world: World) -> Two:
    return reading_two(world)


def reading_two(world: World) -> Two:
    both = Two(world, FakeKafka(cluster_id="shop-id"), FakeKafka(cluster_id="crm-id"))
    both.shop.produce("t", 0, 10)
    both.shop.produce("t", 1, 6)
    both.crm.produce("t", 0, 4)
    both.declare(shop=topic(), crm=topic())
    return both


def test_an_epoch_holds_a_range_of_each_source_and_topics_of_one_name_keep_two_chains(two: Two) -> None:
    planned = two.world.to_committed()

    assert ranges(planned) == ["crm/t-0[0, 4)", "shop/t-0[0, 10)", "shop/t-1[0, 6)"]
    assert heads(two.world) == {"crm/t-0": 4, "shop/t-0": 10, "shop/t-1": 6}


def test_the_record_limit_is_shared_in_proportion_to_the_backlog_of_all_sources(two: Two) -> None:
    assert ranges(two.world.plan(record_limit=10)) == ["crm/t-0[0, 2)", "shop/t-0[0, 5)", "shop/t-1[0, 3)"]


def test_a_source_that_has_nothing_new_is_not_in_the_epoch(two: Two) -> None:
    two.world.to_committed("r1")
    two.crm.produce("t", 0, 3)

    assert ranges(two.world.to_committed("r2")) == ["crm/t-0[4, 7)"]
    assert two.world.plan("r3").outcome is PlanOutcome.NOTHING_TO_READ


def test_the_heads_are_mirrored_in_each_cluster_under_the_names_that_it_knows(two: Two) -> None:
    """S5."""
    two.world.to_committed()

    assert {key: one.offset for key, one in two.shop.groups[GROUP].items()} == {("t", 0): 10, ("t", 1): 6}
    assert {key: one.offset for key, one in two.crm.groups[GROUP].items()} == {("t", 0): 4}


def test_a_source_without_a_mirror_gets_no_group(two: Two) -> None:
    """N3."""
    two.declare(shop=topic(), crm=topic(mirror=False))
    two.world.to_committed()

    assert GROUP in two.shop.groups
    assert two.crm.groups == {}


def test_an_epoch_that_one_clusters_group_shows_and_the_ledger_does_not_know_stops_the_pipeline(two: Two) -> None:
    """INV-8."""
    two.crm.groups[GROUP] = {("t", 0): MirroredOffset(offset=4, generation=1, epoch_id=7, token=None)}

    with pytest.raises(LedgerBehindError, match="epoch 7"):
        two.world.plan()


class _Away(FakeKafka):
    def look(self, source: object) -> Any:
        raise SourceUnavailableError("Kafka at crm:9092 does not answer")


def test_a_cluster_that_is_away_fails_the_plan_retryably_and_nothing_is_planned(two: Two) -> None:
    two.crm = _Away()
    two.declare(shop=topic(), crm=topic(connection="crm_kafka"))

    with pytest.raises(SourceUnavailableError, match=r"source crm \(crm_kafka\): Kafka at crm:9092") as raised:
        two.world.plan()

    assert raised.value.retryable
    assert heads(two.world) == {}


def test_a_topic_that_is_missing_is_named_with_its_source(two: Two) -> None:
    two.declare(shop=topic(), crm=KafkaSource(topics="typo", connection="crm_kafka"))

    with pytest.raises(TopicMissingError, match=r"source crm \(crm_kafka\): Kafka has no topic typo"):
        two.world.plan()


def test_each_source_begins_where_its_own_startup_says(two: Two) -> None:
    """S9."""
    two.crm.groups["old"] = {("t", 0): MirroredOffset(offset=3, generation=None, epoch_id=None, token=None)}
    two.declare(
        latest=topic(startup="latest"),
        given=topic(startup=FromOffsets(offsets={"t": {0: 2, 1: 5}}), mirror=False),
        crm_group=topic(startup=FromGroup(group="old"), connection="crm_kafka"),
        crm_time=topic(startup=FromTimestamp(timestamp=DAY), connection="crm_kafka", mirror=False),
    )
    two.crm.produce("t", 0, 1, at=DAY)
    two.world.plan()

    assert origins(two.world) == {
        "latest/t-0": 10, "latest/t-1": 6, "given/t-0": 2, "given/t-1": 5, "crm_group/t-0": 3, "crm_time/t-0": 4,
    }  # fmt: skip


def test_a_pattern_of_one_source_takes_a_new_topic_from_its_first_offset_and_another_source_does_not(two: Two) -> None:
    two.declare(shop=KafkaSource(pattern="t.*", startup="latest"), crm=topic())
    two.world.to_committed("r1")
    two.shop.produce("t2", 0, 3)
    two.crm.produce("t2", 0, 3)

    assert ranges(two.world.plan("r2")) == ["shop/t2-0[0, 3)"]


def _retention(two: Two) -> None:
    two.crm.produce("t", 0, 5)
    two.crm.change("t", 0, log_start=6)


def _truncation(two: Two) -> None:
    two.crm.change_leader("t", 0, truncate_to=2)
    two.crm.produce("t", 0, 30)


def _lost_unread(two: Two) -> None:
    two.crm.produce("t", 0, 5)
    two.world.to_committed("r2", record_limit=2)
    two.crm.change("t", 0, high_watermark=8, last_stable=8)


def _made_again(two: Two) -> None:
    two.crm.produce("t", 0, 7, topic_id="another")


def _moved(two: Two) -> None:
    two.crm.cluster_id = "another"


@pytest.mark.parametrize(
    ("change", "said", "action", "parameters"),
    [
        (_retention, r"passed the head of crm/t-0: offsets \[4, 6\)", "declare-loss", {}),
        (_truncation, "crm/t-0", "adopt-topic", {"topic": "crm/t", "at": "truncation"}),
        (_lost_unread, "crm/t-0 ended at 9 when epoch 2", "adopt-topic", {"topic": "crm/t", "at": "truncation"}),
        (_made_again, "topic crm/t was deleted and made again", "adopt-topic", {"topic": "crm/t"}),
        (
            _moved,
            r"orders: source crm: its offsets, 4 of them committed, belong to Kafka cluster crm-id, but crm_kafka"
            " now leads to cluster another",
            "adopt-topic",
            {"cluster": True},
        ),
    ],
    ids=["retention", "truncation", "truncated behind the head", "made again", "another cluster"],
)
def test_a_loss_in_one_source_stops_the_pipeline_and_its_way_out_leaves_the_other_source_where_it_is(
    two: Two, change: Callable[[Two], None], said: str, action: str, parameters: dict[str, Any]
) -> None:
    """INV-9, S10: the topics have one name in both clusters."""
    two.world.to_committed("r1")
    before = {tp: head for tp, head in heads(two.world).items() if tp.startswith("shop/")}
    change(two)

    with pytest.raises(DataLossError, match=said):
        two.world.plan("r9")
    act(two.world, action, **parameters)

    planned = two.world.to_committed("r3")
    assert {one.tp.topic for one in planned.ranges} == {"crm/t"}
    generation = 1 if action == "declare-loss" else 2
    assert {tp: head for tp, head in heads(two.world, generation).items() if tp.startswith("shop/")} == before


def test_the_cluster_of_a_source_that_was_added_later_is_guarded_as_well(two: Two) -> None:
    two.declare(shop=topic(), other=KafkaSource(topics="u"))
    two.shop.produce("u", 0, 1)
    two.world.to_committed("r1")
    two.declare(shop=topic(), other=KafkaSource(topics="u"), crm=topic())
    assert ranges(two.world.to_committed("r2")) == ["crm/t-0[0, 4)"]

    _moved(two)
    with pytest.raises(DataLossError, match="source crm: its offsets"):
        two.world.plan("r3")


def test_a_cluster_that_went_back_in_time_is_found_beside_one_that_did_not_and_adopted_alone(two: Two) -> None:
    """INV-8: each cluster's own group shows it."""
    two.world.to_committed("r1")
    backup = deepcopy(two.crm.__dict__)
    two.crm.produce("t", 0, 2)
    two.world.to_committed("r2")
    two.crm.__dict__.update(backup)
    two.crm.produce("t", 0, 5)
    two.shop.produce("t", 0, 1)
    with pytest.raises(KafkaBehindError, match="crm/t-0: offset 4 of epoch 1"):
        two.world.plan("r3")

    act(two.world, "adopt-topic", cluster=True, at="truncation")

    assert ranges(two.world.to_committed("r4")) == ["crm/t-0[4, 9)", "shop/t-0[10, 11)"]


def test_a_source_that_was_removed_is_no_longer_read_and_keeps_its_heads(two: Two) -> None:
    two.shop.produce("u", 0, 1)
    two.declare(shop=topic(), crm=topic(), other=KafkaSource(topics="u"))
    two.world.to_committed("r1")
    two.declare(shop=topic(), other=KafkaSource(topics="u"))
    two.crm.produce("t", 0, 5)
    two.shop.produce("t", 0, 1)

    assert ranges(two.world.plan("r2")) == ["shop/t-0[10, 11)"]
    assert heads(two.world)["crm/t-0"] == 4


@pytest.mark.parametrize("change", ["renamed", "one source"])
def test_a_change_that_would_read_records_a_second_time_under_another_name_is_refused(two: Two, change: str) -> None:
    two.declare(shop=topic(connection="a"), crm=topic(connection="b"))
    two.world.to_committed("r1")
    if change == "renamed":
        two.declare(shop=topic(connection="a"), crm2=topic(connection="b"))
    else:
        two.world.pipeline = orders(source=topic(connection="a"))
        two.world.source = two.shop

    with pytest.raises(ChangeRefusedError, match="would be read a second time"):
        two.world.plan("r2")


def test_a_backfill_ends_in_each_source_where_its_interval_ends_there(two: Two) -> None:
    for number, (shop, crm) in enumerate([(3, 1), (2, 4)]):
        two.shop.produce("t", 0, shop, at=DAY + timedelta(days=number))
        two.crm.produce("t", 0, crm, at=DAY + timedelta(days=number))

    planned = two.world.plan(interval=Interval(start=DAY, until=DAY + timedelta(days=1)))

    assert {str(one) for one in planned.ranges} >= {"crm/t-0[0, 5)", "shop/t-0[0, 13)"}


@pytest.mark.server
def test_a_restore_puts_every_source_back_and_reads_its_records_again(postgres_dsn: str) -> None:
    """C12. INV-9: not if a topic of one of them is compacted."""
    two = reading_two(postgres_world(postgres_dsn))
    two.world.to_committed("r1")
    act(two.world, "savepoint", name="before")
    two.shop.produce("t", 0, 3)
    two.crm.produce("t", 0, 2)
    two.world.to_committed("r2")
    two.crm.compacted.add("t")
    assert "crm/t is compacted" in refusal_of(two.world, "restore", name="before")
    two.crm.compacted.clear()

    act(two.world, "restore", name="before")

    assert ranges(two.world.to_committed("r3")) == ["crm/t-0[4, 6)", "shop/t-0[10, 13)"]
    assert sorted(two.rows) == [
        *(("crm/t", 0, offset) for offset in range(6)),
        *(("shop/t", 0, offset) for offset in range(13)),
        *(("shop/t", 1, offset) for offset in range(6)),
    ]


def test_what_lies_before_the_origins_of_all_sources_is_committed_and_no_head_moves(two: Two) -> None:
    """S9, INV-1."""
    two.declare(shop=topic(startup="latest"), crm=topic(startup=FromOffsets(offsets={"t": {0: 1}})))
    two.world.plan("r1", lease=timedelta(seconds=-1))
    two.shop.produce("t", 0, 2)
    two.world.to_committed("r2")
    before = heads(two.world)
    assert origins(two.world) == {"crm/t-0": 1, "shop/t-0": 10, "shop/t-1": 6}

    steps = []
    for who in ("r3", "r4"):
        planned = two.world.finish(ordered(two.world, "extend-back", who, to="earliest", step=9), who)
        steps.append(sum(len(one.range) for one in planned.ranges))

    assert steps == [9, 8]
    assert set(origins(two.world).values()) == {0}
    assert heads(two.world) == before
    assert len(two.rows) == len(set(two.rows)) == 12 + 6 + 4


@pytest.mark.server
def test_a_replayed_epoch_takes_the_place_of_its_rows_of_every_source_and_of_no_others(postgres_dsn: str) -> None:
    """INV-2."""
    two = reading_two(postgres_world(postgres_dsn))
    two.world.to_committed("r1")
    two.crm.produce("t", 0, 3)
    two.world.to_committed("r2")

    replay = plan_replay(two.world.subject, 1, run("r3"))
    assert ranges(replay) == ["crm/t-0[0, 4)", "shop/t-0[0, 10)", "shop/t-1[0, 6)"]
    two.world.pre_commit(replay, "r3")
    promote(two.world.subject, epoch_of(replay), ORDER)

    assert heads(two.world) == {"crm/t-0": 7, "shop/t-0": 10, "shop/t-1": 6}
    by_epoch = Counter((one, epoch) for one, _, _, epoch in two.world.visible())
    assert by_epoch == {("crm/t", 3): 4, ("shop/t", 3): 16, ("crm/t", 2): 3}


def test_a_ledger_that_went_back_is_accepted_with_what_the_group_of_one_cluster_shows(two: Two) -> None:
    """INV-8: the tables read again what the lost epoch had read, and nothing twice."""
    two.world.to_committed("r1")
    two.crm.produce("t", 0, 3)
    two.crm.groups[GROUP] = {("t", 0): MirroredOffset(offset=7, generation=1, epoch_id=7, token=None)}
    with pytest.raises(LedgerBehindError, match="epoch 7"):
        two.world.plan("r2")

    shown = preview_of(two.world, "accept-ledger").lines
    assert any(f"{GROUP} shows epoch 7" in line and "crm/t-0 [4, 7)" in line for line in shown)
    act(two.world, "accept-ledger")

    planned = two.world.to_committed("r3")
    assert ranges(planned) == ["crm/t-0[4, 7)"]
    assert epoch_of(planned).epoch_id == 8
    assert len(two.rows) == len(set(two.rows)) == 10 + 6 + 7


@pytest.mark.server
def test_the_ends_of_each_sources_logs_are_stored_when_its_own_kafka_is_asked(postgres_dsn: str) -> None:
    """The pages show them between two plans; a Kafka is asked by itself, for the sources that read it."""
    two = reading_two(postgres_world(postgres_dsn))
    two.declare(shop=topic(connection="a"), crm=topic(connection="b"))
    two.world.to_committed()
    two.crm.produce("t", 0, 6)

    assert refresh_log_ends(two.world.ledger, two.crm, [two.world.pipeline], "b") == 1

    ends = "SELECT topic, partition, last_stable FROM epochline.log_ends ORDER BY 1, 2"
    assert query(postgres_dsn, ends) == [("crm/t", 0, 10), ("shop/t", 0, 10), ("shop/t", 1, 6)]


def test_any_order_of_records_in_two_sources_is_committed_once_each(two: Two) -> None:
    """INV-1."""
    draw = random.Random(7)
    for number in range(12):
        for cluster in (two.shop, two.crm):
            cluster.produce("t", 0, draw.randint(1, 4))
        two.world.to_committed(f"r{number}", record_limit=draw.randint(3, 30))
    two.shop.produce("t", 0, 1)
    two.world.to_committed("last")

    produced = sum(one.high_watermark for cluster in (two.shop, two.crm) for one in cluster.views.values())
    assert len(set(two.rows)) == len(two.rows) == produced
