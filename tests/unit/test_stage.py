"""The order of one attempt: begin, lease, job, seal; and what becomes of the job when something fails."""

import time
from collections.abc import Callable
from importlib import import_module

import pytest

from epochline.coordinator import stage
from epochline.declare.source import KafkaSource
from epochline.errors import EpochError, EpochFencedError, SealRefusedError, SourceUnavailableError
from epochline.protocol.epoch import Counts, EpochState
from epochline.protocol.planning import SourceView
from epochline.protocol.staging import StagingTicket
from tests.contract.worlds import World, fake_world, run

STAGE = import_module("epochline.coordinator.stage")  # not the function of the same name


class Job:
    """A job that stages the rows of a planned epoch, and what is done while it runs."""

    def __init__(self, world: World, during: Callable[[], None] = lambda: None, *, ends: bool = True) -> None:
        self.world, self.during, self.ends = world, during, ends
        self.planned = world.plan()
        self.said: list[str] = []

    def submit(self, ticket: StagingTicket) -> None:
        self.said.append("submitted")
        self.during()
        if self.ends:
            self.world.stage(self.planned, ticket)
        self.said.append("ended")

    def stop(self) -> None:
        self.said.append("stopped")
        raise RuntimeError("nothing to stop")

    def __call__(self) -> Counts | None:
        return stage(self.world.ledger, self.world.kafka, "orders", 1, run(), submit=self.submit, stop=self.stop)


@pytest.fixture
def world() -> World:
    made = fake_world()
    made.kafka.produce("orders", 0, 3)
    return made


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (EpochError("Spark failed"), ["submitted"]),
        (KeyboardInterrupt(), ["submitted", "stopped"]),
        (SystemExit(), ["submitted", "stopped"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_job_that_failed_seals_nothing_and_is_stopped_only_if_it_was_interrupted(
    world: World, error: BaseException, said: list[str]
) -> None:
    def during() -> None:
        raise error

    one = Job(world, during)
    with pytest.raises(type(error)) as raised:
        one()

    assert raised.value is error
    assert one.said == said
    assert world.epoch(1).state is EpochState.PLANNED


def test_a_job_without_its_end_mark_is_not_sealed(world: World) -> None:
    with pytest.raises(SealRefusedError, match="without its end mark"):
        Job(world, ends=False)()

    assert world.epoch(1).state is EpochState.PLANNED


def test_a_job_whose_attempt_is_fenced_is_stopped_and_seals_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STAGE, "RENEW_EVERY_SECONDS", 0.01)
    monkeypatch.setattr("threading.excepthook", lambda _: None)  # a stop that fails ends the thread of the lease
    one = Job(world)

    def fenced() -> None:
        world.begin(1)
        for _ in range(500):
            if "stopped" in one.said:
                raise EpochError("the job was stopped")
            time.sleep(0.01)

    one.during = fenced
    with pytest.raises(EpochFencedError):
        one()

    assert one.said == ["submitted", "stopped"]
    assert world.epoch(1).state is EpochState.PLANNED


@pytest.mark.parametrize("fails", [0, 1, 3])
def test_what_is_staged_is_sealed_once_kafka_answers(world: World, monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    """F19: a gap between the end of the job and the seal throws nothing away."""
    monkeypatch.setattr(STAGE, "_PAUSE_SECONDS", 0.01)
    one, look, left = Job(world), world.kafka.look, [SourceUnavailableError("away")] * fails

    def sometimes(source: KafkaSource) -> SourceView:
        if left:
            raise left.pop()
        return look(source)

    monkeypatch.setattr(world.kafka, "look", sometimes)

    counts = one()

    assert left == []
    assert counts is not None
    assert counts.read == sum(len(planned.range) for planned in one.planned.ranges)
    assert one() is None  # a repeat needs no job
    assert one.said == ["submitted", "ended"]
    assert world.epoch(1).state is EpochState.PRE_COMMITTED


def test_kafka_that_stays_away_fails_the_attempt_with_its_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STAGE, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(STAGE, "PATIENCE_SECONDS", 0.05)
    one = Job(world)

    def away(source: KafkaSource) -> SourceView:
        raise SourceUnavailableError("away")

    monkeypatch.setattr(world.kafka, "look", away)

    with pytest.raises(SourceUnavailableError, match="away"):
        one()

    assert world.epoch(1).state is EpochState.PLANNED
