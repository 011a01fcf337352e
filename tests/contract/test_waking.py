"""When records that wait start a run, over both ledgers and their own clocks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from epochline import KafkaSource
from epochline.coordinator import Lookout, Watched, look
from epochline.coordinator.waking import ASK_AGAIN_SECONDS
from tests.contract.worlds import World, orders

INTERVAL = 60.0


@dataclass
class Watch:
    """A lookout for the pipeline, and what it asked the ledger."""

    world: World
    seconds: float = 0.0
    asked: int = 0
    interval: float = INTERVAL
    lookout: Lookout = field(init=False)

    def __post_init__(self) -> None:
        self.lookout = Lookout(clock=lambda: self.seconds)

    @property
    def due(self) -> int | None:
        """The newest epoch of the pipeline if it is due, 0 if it has none; None if it is not due."""
        interval = timedelta(seconds=self.interval)
        source = self.world.pipeline.source
        assert isinstance(source, KafkaSource)
        watched = Watched(pipeline="orders", topics=source, minimum_interval=interval)
        return look(self.world.ledger, self.world.kafka, [watched], self.lookout).get("orders")


@pytest.fixture
def watch(world: World) -> Watch:
    return Watch(world)


def test_a_pipeline_that_was_never_planned_is_due_and_a_planned_one_only_when_records_wait(watch: Watch) -> None:
    """K23: the first plan writes the origins."""
    assert watch.due == 0

    watch.world.to_committed()
    watch.world.let_pass(INTERVAL + 1)
    assert watch.due is None

    watch.world.kafka.produce("orders", 1, 1)
    assert watch.due == 1


def test_the_interval_counts_from_the_last_commit_by_the_ledgers_clock(watch: Watch) -> None:
    """K23."""
    watch.world.to_committed()
    watch.world.kafka.produce("orders", 0, 1)

    assert watch.due is None
    watch.world.let_pass(INTERVAL / 2)
    assert watch.due is None
    watch.world.let_pass(INTERVAL / 2 + 1)
    assert watch.due == 1


def test_an_open_transaction_wakes_nobody_until_it_ends(watch: Watch) -> None:
    """K23, S13: its records are behind the last stable offset."""
    watch.world.to_committed()
    watch.world.let_pass(INTERVAL + 1)
    watch.world.kafka.change("orders", 0, high_watermark=12)

    assert watch.due is None

    watch.world.kafka.change("orders", 0, last_stable=12)
    assert watch.due == 1


def test_an_epoch_in_work_wakes_nobody_and_one_whose_run_is_gone_is_due(watch: Watch) -> None:
    """INV-6: what a dead run left is finished by the next run, and data alone may have to start it."""
    watch.world.to_sealed()
    watch.world.kafka.produce("orders", 0, 1)

    assert watch.due is None
    watch.world.let_pass(3600)
    assert watch.due == 1

    watch.world.finish(watch.world.plan("run-2"), "run-2")
    watch.world.let_pass(3600)
    assert watch.due is None, "run-2 committed what was left, and the record"


def test_an_aborted_epoch_leaves_its_records_waiting(watch: Watch) -> None:
    """INV-7."""
    watch.world.to_begun()
    watch.world.abort()

    assert watch.due == 1


@pytest.mark.parametrize(
    "say",
    [lambda tx: tx.operators.pause("orders", "ann", "late"), lambda tx: tx.operators.drop("orders", "ann", "old")],
    ids=["paused", "dropped"],
)
def test_what_an_operator_stopped_is_not_woken(watch: Watch, say: Callable[..., None]) -> None:
    watch.world.to_committed()
    watch.world.let_pass(INTERVAL + 1)
    watch.world.kafka.produce("orders", 0, 1)
    with watch.world.ledger.transaction() as tx:
        say(tx)

    assert watch.due is None


def test_a_topic_that_was_made_again_or_truncated_is_due_so_that_a_plan_reports_it(watch: Watch) -> None:
    """K23, INV-9."""
    watch.world.to_committed()
    watch.world.let_pass(INTERVAL + 1)
    watch.world.kafka.change("orders", 0, high_watermark=7, last_stable=7)
    assert watch.due == 1

    watch.world.kafka.produce("orders", 0, 10, topic_id="another")
    assert watch.due == 1


def test_a_missing_topic_is_not_due(watch: Watch) -> None:
    watch.world.pipeline = orders(source=KafkaSource(topics="nowhere"))

    assert watch.due is None


def test_while_nothing_is_produced_the_ledger_is_asked_once_a_minute(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle stack's load; a restore is noticed after a minute at the latest."""
    watch.world.to_committed()
    watch.world.let_pass(INTERVAL + 1)
    transaction = watch.world.ledger.transaction

    def counted():  # type: ignore[no-untyped-def] # as the port describes it
        watch.asked += 1
        return transaction()

    monkeypatch.setattr(watch.world.ledger, "transaction", counted)
    for _ in range(10):
        assert watch.due is None
    assert watch.asked == 1

    watch.seconds += ASK_AGAIN_SECONDS
    assert watch.due is None
    assert watch.asked == 2

    watch.world.kafka.produce("orders", 0, 1)
    assert watch.due == 1
