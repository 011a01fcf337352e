"""The order of one attempt: begin, lease, job, seal; and what becomes of the job when something fails."""

from __future__ import annotations

import time

import pytest

from epochline.coordinator import lease, stage
from epochline.errors import EpochError, EpochFencedError, SealRefusedError
from epochline.protocol.epoch import EpochState
from tests.contract.worlds import World, fake_world, run


class Job:
    """A job that stages an epoch's rows, and what is done while it runs."""

    def __init__(self, world: World, during=lambda: None, *, ends=True) -> None:
        self.world, self.during, self.ends = world, during, ends
        self.said: list[str] = []

    def submit(self, ticket) -> None:
        self.said.append("submitted")
        self.during()
        if self.ends:
            self.world.stage(self.planned, ticket)
        self.said.append("ended")

    def stop(self) -> None:
        self.said.append("stopped")
        raise RuntimeError("nothing to stop")

    def __call__(self, who="run-1"):
        return stage(self.world.ledger, self.world.kafka, "orders", 1, run(who), submit=self.submit, stop=self.stop)


@pytest.fixture
def world() -> World:
    made = fake_world()
    made.kafka.produce("orders", 0, 3)
    return made


def job(world: World, *args, **options) -> Job:
    made = Job(world, *args, **options)
    made.planned = world.plan()
    return made


def raising(error: BaseException):
    def during() -> None:
        raise error

    return during


def test_an_epoch_is_staged_and_sealed_and_a_repeat_needs_no_job(world):
    one = job(world)

    counts = one()
    assert counts is not None
    assert counts.read == sum(len(planned.range) for planned in one.planned.ranges)
    assert one() is None

    assert one.said == ["submitted", "ended"]
    assert world.epoch(1).state is EpochState.PRE_COMMITTED


def test_a_job_that_failed_seals_nothing_and_is_not_stopped(world):
    one = job(world, raising(EpochError("Spark failed")))

    with pytest.raises(EpochError, match="Spark failed"):
        one()

    assert one.said == ["submitted"]
    assert world.epoch(1).state is EpochState.PLANNED


def test_a_job_without_its_end_mark_is_not_sealed(world):
    with pytest.raises(SealRefusedError, match="without its end mark"):
        job(world, ends=False)()

    assert world.epoch(1).state is EpochState.PLANNED


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_job_is_stopped_before_the_caller_hears_of_it(world, interruption):
    one = job(world, raising(interruption()))

    with pytest.raises(interruption):
        one()

    assert one.said == ["submitted", "stopped"]


def test_a_job_whose_attempt_is_fenced_is_stopped_and_seals_nothing(world, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_EVERY_SECONDS", 0.01)
    monkeypatch.setattr("threading.excepthook", lambda _: None)  # a stop that fails ends the thread of the lease
    one = job(world)

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
