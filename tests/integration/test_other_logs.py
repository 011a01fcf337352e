"""What an operator does after a log became another one: no record leaves the targets for good, and none is left out."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.errors import ActionRefusedError
from epochline.operations import Request
from epochline.operations.replay import plan_replay, promote
from epochline.protocol.epoch import Run
from tests.driver import epoch_of
from tests.integration.in_process import InProcess
from tests.integration.log_with_contents import Log

ORDER = Request(actor="ada", reason="a test says so")
REPLAY = Run(dag_id="p", run_id="replay", host="here")
_numbers = itertools.count(1)


class OtherLog(InProcess):
    log: Log

    def values(self) -> list[str]:
        return [value for (value,) in self.sql("SELECT value FROM t ORDER BY _epoch, _offset")]

    def back(self, to: str = "earliest", step: int | None = None) -> list[str]:
        """Every step of an extend-back; the ranges that they read."""
        read: list[str] = []
        while True:
            run = self.run_of(f"back {next(_numbers)}")
            try:
                planned = self.order("extend-back", ORDER, run, to=to, step=step)
            except ActionRefusedError:
                if read:
                    return read
                raise
            self.finish(planned, run)
            read += [str(one) for one in planned.ranges]

    def act_on(self, what: str, **asked: Any) -> None:
        self.act(what, ORDER, **asked)

    def add(self, *values: str) -> None:
        """An epoch of one record in each topic that a value names."""
        for value in values:
            self.log.add(value.partition(" ")[0], value)
        self.epoch()


def declared(source: Any) -> Pipeline:
    return Pipeline(name="p", source=source, parse=Text(), sinks=[PostgresTable(table="t", columns={"value": "text"})])


def topics(*names: str, **more: Any) -> Pipeline:
    return declared(KafkaSource(topics=names, **more))


NewLog = Callable[[Pipeline], OtherLog]


@pytest.fixture
def world(postgres_dsn: str) -> NewLog:
    def made(pipeline: Pipeline) -> OtherLog:
        log = Log()
        it = OtherLog(dsn=postgres_dsn, pipeline=pipeline, source=log.kafka, read=log.read)
        it.log = log
        return it.create()

    return made


@pytest.mark.parametrize("gone", [True, False], ids=["deleted in Kafka", "kept in Kafka"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(topics("orders", "refunds"), topics("orders"), id="no longer named"),
        pytest.param(declared(KafkaSource(pattern="orders|refunds")), topics("orders"), id="no longer matched"),
    ],
)
def test_a_restore_keeps_what_was_read_of_a_topic_that_left_the_declaration(
    world: NewLog, before: Pipeline, after: Pipeline, gone: bool
) -> None:
    """I1, INV-9: nobody would read its records again, so their rows stay."""
    it = world(before)
    it.add("orders 0", "refunds 0")
    it.act_on("savepoint", name="s")
    it.add("orders 1", "refunds 1")
    it.pipeline = after
    it.add("orders 2")
    if gone:
        it.log.delete("refunds")
    stood = it.values()

    with pytest.raises(ActionRefusedError, match=r"no longer reads refunds, of which undone epochs read refunds-0\[1,"):
        it.act_on("restore", name="s")

    assert it.values() == stood
    if not gone:
        it.pipeline = before
        it.act_on("restore", name="s")
        it.epoch()
        assert sorted(it.values()) == sorted(stood)


def test_a_restore_needs_nothing_of_a_retired_topic_of_which_nothing_is_undone(world: NewLog) -> None:
    it = world(topics("orders", "refunds"))
    it.add("orders 0", "refunds 0")
    it.act_on("savepoint", name="s")
    it.pipeline = topics("orders")
    it.log.delete("refunds")
    it.add("orders 1")

    it.act_on("restore", name="s")
    it.epoch()

    assert sorted(it.values()) == ["orders 0", "orders 1", "refunds 0"]


def test_a_restore_keeps_what_was_read_of_a_topic_that_was_made_again_since(world: NewLog) -> None:
    """I1: the savepoint knows nothing of the topic, and the generation nothing of its first log."""
    it = world(declared(KafkaSource(pattern="orders|refunds")))
    it.add("orders 0")
    it.act_on("savepoint", name="s")
    it.add("refunds 0")
    it.log.add("refunds", "refunds 1", topic_id="another")
    it.act_on("adopt-topic", topic="refunds")
    it.epoch()

    with pytest.raises(ActionRefusedError, match="no longer has refunds-0 as it was then"):
        it.act_on("restore", name="s")

    assert it.values() == ["orders 0", "refunds 0", "refunds 1"]


@pytest.mark.parametrize(
    "source",
    [KafkaSource(topics=("orders", "refunds")), KafkaSource(pattern="orders|refunds")],
    ids=["named", "matched"],
)
def test_nothing_is_undone_that_was_read_of_a_compacted_topic(world: NewLog, source: KafkaSource) -> None:
    """I1, INV-9: what compaction took, or takes before the next read, would leave the targets in silence."""
    it = world(declared(source))
    it.log.kafka.compacted.add("refunds")
    it.add("orders 0", "refunds 0")
    it.act_on("savepoint", name="s")
    it.add("orders 1")
    it.act_on("restore", name="s")  # undoes nothing of the compacted one
    it.add("refunds 1")
    stood = it.values()
    refused = r"refunds is compacted .*, so that refunds-0\[{}\) may give fewer records now"

    with pytest.raises(ActionRefusedError, match=refused.format("1, 2")):
        it.act_on("restore", name="s")

    with pytest.raises(ActionRefusedError, match="^R" + refused.format("0, 1")[1:]):
        plan_replay(it.subject, 1, REPLAY)
    assert it.values() == stood


def records(name: str, start: int, until: int) -> list[str]:
    return [f"{name}{offset}" for offset in range(start, until)]


def cut_off(world: NewLog) -> OtherLog:
    """Of ten records five were lost, fifteen others came in their place, and the log was adopted at its end."""
    it = world(topics("orders"))
    it.log.add("orders", *records("a", 0, 10))
    it.epoch()
    it.log.truncate("orders", 5, *records("b", 5, 20))
    it.act_on("adopt-topic", topic="orders", at="latest")
    return it


@pytest.mark.parametrize("step", [None, 1], ids=["at once", "in steps"])
def test_behind_a_log_that_was_cut_off_every_record_that_replaced_a_lost_one_can_be_read(
    world: NewLog, step: int | None
) -> None:
    """INV-1, INV-9: what is committed of the log is left out, what was committed of the lost part is not taken for it."""
    it = cut_off(world)

    read = it.back(step=step)

    assert len(read) == (1 if step is None else 15)
    assert sorted(it.values()) == sorted([*records("a", 0, 10), *records("b", 5, 20)])
    with pytest.raises(ActionRefusedError, match="they are back there"):
        it.back()


def test_what_lies_between_the_parts_that_are_committed_of_a_log_is_read(world: NewLog) -> None:
    """INV-1, INV-9: a log that was cut off twice, and begun at its end both times, has two gaps."""
    it = cut_off(world)
    it.log.add("orders", *records("b", 20, 25))
    it.epoch()
    it.log.truncate("orders", 22, *records("c", 22, 30))
    it.act_on("adopt-topic", topic="orders", at="latest")
    it.log.add("orders", *records("c", 30, 31))
    it.epoch()

    assert it.back() == ["orders-0[22, 30)", "orders-0[5, 20)"]

    assert sorted(it.values()) == sorted([*it.log.values["orders", 0], *records("a", 5, 10), *records("b", 22, 25)])
    chain = it.sql("SELECT start_offset, chosen_by FROM epochline.committed_ranges WHERE generation = 3 ORDER BY 1")
    assert chain == [
        (5, "extend back"), (20, "carried over"), (22, "extend back"), (30, "epoch"), (None, "adopted at latest")
    ]  # fmt: skip


def test_what_a_restore_undid_does_not_count_as_committed(world: NewLog) -> None:
    """INV-1: also if a replay had taken its place; what stands of the log is left out."""
    it = world(topics("orders"))
    it.log.add("orders", *records("a", 0, 2))
    it.log.add("orders", *records("x", 0, 2), partition=1)
    it.epoch()
    it.act_on("savepoint", name="s")
    it.log.add("orders", *records("a", 2, 4))
    it.epoch()
    replay = plan_replay(it.subject, 2, REPLAY)
    it.staged_and_sealed(replay, REPLAY)
    promote(it.subject, epoch_of(replay), ORDER)
    it.act_on("restore", name="s")
    it.log.truncate("orders", 1, *records("y", 1, 3), partition=1)
    it.act_on("adopt-topic", topic="orders", at="latest")

    assert it.back() == ["orders-0[2, 4)", "orders-1[1, 3)"]

    assert sorted(it.values()) == sorted([*records("a", 0, 4), *records("x", 0, 2), *records("y", 1, 3)])


def test_where_a_log_was_cut_off_is_refused_as_long_as_nobody_knows_it(world: NewLog) -> None:
    """INV-9: an older version adopted it at its end, and wrote nothing down."""
    it = cut_off(world)
    as_owner = "ALTER TABLE epochline.committed_range {} TRIGGER committed_is_written_once"
    it.sql(as_owner.format("DISABLE"))
    it.sql("UPDATE epochline.committed_range SET same_log_until = -1 WHERE same_log_until IS NOT NULL")
    it.sql(as_owner.format("ENABLE"))

    with pytest.raises(ActionRefusedError, match="did not write down where it was cut off"):
        it.back()


def test_a_savepoint_of_the_lost_part_of_a_log_is_not_gone_back_to(world: NewLog) -> None:
    """INV-9, I1: the cut is in the ledger, also where Kafka's leader epochs do not show it."""
    it = world(topics("orders"))
    it.log.add("orders", *records("a", 0, 10))
    it.epoch()
    it.act_on("savepoint", name="before")
    it.log.truncate("orders", 5)
    it.act_on("adopt-topic", topic="orders", at="truncation")
    it.log.add("orders", *records("b", 5, 20))
    it.log.kafka.change("orders", 0, leader_epoch=0)
    it.epoch()

    with pytest.raises(ActionRefusedError, match="would go on at offset 10, but its log was cut off at offset 5"):
        it.act_on("restore", name="before")

    with pytest.raises(ActionRefusedError, match=r"orders-0\[0, 10\) is of a log that was cut off at offset 5"):
        plan_replay(it.subject, 1, REPLAY)
    assert sorted(it.values()) == sorted([*records("a", 0, 10), *records("b", 5, 20)])
