"""LocalExecutor with two schedulers on one database of Airflow's, each on a machine of its own."""

from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.half_way import half_written
from tests.crash.reliability import Recovery
from tests.e2e.executors import OwnAirflow, own_airflow, parts
from tests.e2e.machines import Machine

pytestmark = pytest.mark.slow

NAMES = ("scheduler-1", "scheduler-2")
ATTEMPTS = "SELECT host, state FROM epochline.attempts WHERE pipeline = %s ORDER BY attempt"


@dataclass
class Schedulers:
    airflow: OwnAirflow
    scheduler: Scheduler

    def start(self) -> None:
        """Start those that do not run."""
        for name in NAMES:
            if self.airflow.room.machine(name).process is None:
                self.airflow.start(name, "scheduler", **self.airflow.metadata)

    def of_attempt(self, pipeline: str) -> Machine:
        """The machine of a pipeline's newest attempt."""
        return self.airflow.room.machines[self.scheduler.query(ATTEMPTS, pipeline)[-1][0]]


@pytest.fixture(scope="module")
def schedulers() -> Iterator[Schedulers]:
    with own_airflow() as airflow:
        airflow.shared |= {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor", "AIRFLOW__CORE__PARALLELISM": "4"}
        with parts(airflow, ("dag-processor",)) as scheduler:
            yield Schedulers(airflow, scheduler)


@pytest.mark.fault("F54", "F9")
@pytest.mark.parametrize("pipeline", ["scheduler_killed", "scheduler_alone_killed"])
def test_the_other_scheduler_finishes_the_epoch_of_one_that_was_killed(
    schedulers: Schedulers, recovery: Recovery, pipeline: str
) -> None:
    """INV-3, INV-4: with its machine and its tasks, or alone, so that its task works on beside the next try."""
    schedulers.start()
    scheduler = schedulers.scheduler
    values, run = half_written(scheduler, pipeline)
    killed = schedulers.of_attempt(pipeline)

    if pipeline == "scheduler_killed":
        killed.kill()
        recovery.last_fault()
    else:
        scheduler_of(killed).kill()
        recovery.last_fault()
        eventually("the next try has begun", lambda: scheduler.epoch(pipeline, 1)[1] == 2)
    schedulers.airflow.let_go(pipeline)
    scheduler.produce(pipeline, {0: ["later"]})

    assert scheduler.wait(pipeline, run) == "success"
    assert scheduler.epoch(pipeline, 1) == ("COMMITTED", 2)
    assert schedulers.of_attempt(pipeline).name != killed.name
    scheduler.assert_exact(pipeline, values)
    recovery.took()
    killed.kill()


def scheduler_of(machine: Machine) -> psutil.Process:
    """The process whose children take the tasks."""
    first = machine.processes()[0]
    return next(one for one in first.children() if "scheduler" in " ".join(one.cmdline()))
