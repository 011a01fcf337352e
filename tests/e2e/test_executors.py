"""The tasks of a run on machines that share nothing but the servers and Airflow's API, by two of Airflow's executors.

tests/e2e/machines.py makes the machines. Each has its own copy of the declaration and of its functions. Connections come
from Airflow's API; a worker of Celery's has no login to Airflow's database.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from epochline_examples.redis_server import redis_program
from tests.airflow.conftest import eventually
from tests.airflow.half_way import half_written
from tests.crash.reliability import Recovery
from tests.e2e.executors import OwnAirflow, own_airflow
from tests.e2e.machines import SERVERS, Machine
from tests.e2e.own_servers import running
from tests.ports import free_port
from tests.waiting import arguments_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="namespaces need root and iproute2"),
]

ATTEMPTS = "SELECT host, state FROM epochline.attempts WHERE pipeline = %s ORDER BY attempt"


@pytest.fixture(scope="module")
def servers() -> Iterator[OwnAirflow]:
    with own_airflow() as one:
        yield one


@pytest.fixture(scope="module")
def airflow(servers: OwnAirflow, request: pytest.FixtureRequest) -> Iterator[OwnAirflow]:
    """With an executor: two schedulers, or a broker and one worker of Celery's for all tasks but those that stage."""
    servers.shared["AIRFLOW__CORE__EXECUTOR"] = request.param
    with ExitStack() as stack:
        stack.callback(servers.room.kill)
        if request.param == "LocalExecutor":
            for name in ("scheduler-1", "scheduler-2"):
                servers.start(name, "scheduler", AIRFLOW__CORE__PARALLELISM="4", **servers.metadata)
            stack.enter_context(servers.running("dag-processor"))
        else:
            stack.enter_context(broker(servers))
            start_worker(servers, "planner", "default")
            stack.enter_context(servers.running("scheduler", "dag-processor"))
        yield servers


@contextmanager
def broker(airflow: OwnAirflow) -> Iterator[None]:
    port, password, settings = free_port(), "password-of-redis", airflow.folder / "redis.conf"
    lines = [f"bind {SERVERS}", f"port {port}", f"requirepass {password}", 'save ""', f"dir {airflow.folder}"]
    settings.write_text("\n".join(lines) + "\n")
    url = f"redis://:{password}@{SERVERS}:{port}"
    airflow.shared |= {
        "AIRFLOW__CELERY__BROKER_URL": f"{url}/0",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"{url}/1",
        # A message that nobody has acknowledged by then is delivered again; Airflow's default is a day.
        "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "30",
    }
    with running([redis_program(), settings], lambda: True, stdout=subprocess.DEVNULL):
        yield


def start_worker(airflow: OwnAirflow, name: str, queue: str) -> Machine:
    """A worker for a queue's tasks, which takes one at a time."""
    command = ("celery", "worker", "--queues", queue, "--concurrency", "1", "--celery-hostname", f"worker@{name}")
    return airflow.start(name, *command)


@pytest.fixture
def stager(airflow: OwnAirflow) -> Iterator[Machine]:
    """The one machine that takes tasks which stage; the test may kill it."""
    machine = start_worker(airflow, "stager", "staging")
    yield machine
    machine.kill()


@pytest.fixture
def other(airflow: OwnAirflow) -> Iterator[Machine]:
    """A machine for a further worker, which a test starts."""
    machine = airflow.room.machine("other")
    yield machine
    machine.kill()


local = pytest.mark.parametrize("airflow", ["LocalExecutor"], indirect=True)
celery = pytest.mark.parametrize("airflow", ["CeleryExecutor"], indirect=True)


@local
@pytest.mark.fault("F54", "F9")
def test_the_other_scheduler_finishes_the_epoch_of_a_scheduler_that_lost_its_power(
    airflow: OwnAirflow, recovery: Recovery
) -> None:
    """INV-3, INV-4: two schedulers on one database of Airflow's; one is killed with its machine and its tasks."""
    scheduler, pipeline = airflow.scheduler, "scheduler_killed"
    values, run = half_written(scheduler, pipeline)
    [(killed, _)] = scheduler.query(ATTEMPTS, pipeline)

    airflow.room.machines[killed].kill()
    recovery.last_fault()
    airflow.let_go(pipeline)
    scheduler.produce(pipeline, {0: ["later"]})

    assert scheduler.wait(pipeline, run) == "success"
    assert scheduler.epoch(pipeline, 1) == ("COMMITTED", 2)
    [other] = {"scheduler-1", "scheduler-2"} - {killed}
    assert [host for host, _ in scheduler.query(ATTEMPTS, pipeline)] == [killed, other]
    scheduler.assert_exact(pipeline, values)
    recovery.took()


@celery
def test_tasks_of_a_run_on_two_machines_commit_each_record_once(airflow: OwnAirflow, stager: Machine) -> None:
    """G3, INV-1, INV-4: two homes, accounts, temporary folders and paths of the project. No file is left behind."""
    scheduler, values = airflow.scheduler, {p: [f"{p}-{i}" for i in range(100)] for p in range(4)}
    scheduler.prepare("apart", values)

    run = scheduler.trigger("apart")

    assert scheduler.wait("apart", run) == "success"
    names = {machine.address: name for name, machine in airflow.room.machines.items()}
    assert {task: names[one["hostname"]] for task, one in scheduler.instances("apart", run).items()} == {
        "plan_epoch": "planner", "pre_commit": "stager", "commit_epoch": "planner", "abort_epoch": "planner",
    }  # fmt: skip
    assert scheduler.query(ATTEMPTS, "apart") == [("stager", "COMMITTED")]
    assert "this task plans the epoch of run" in scheduler.log("apart", run, "plan_epoch")
    assert "is pre-committed: 400 records read" in scheduler.log("apart", run, "pre_commit")
    assert [*Path(f"/proc/{stager.processes()[0].pid}/root/tmp").glob("epochline-*")] == []
    scheduler.assert_exact("apart", values)


@celery
@pytest.mark.fault("F54")
def test_the_next_try_on_another_machine_reads_the_range_of_a_machine_that_lost_its_power(
    airflow: OwnAirflow, stager: Machine, other: Machine, recovery: Recovery
) -> None:
    """INV-3, INV-4: rows are being copied, and parts are committed to staging."""
    scheduler, pipeline = airflow.scheduler, "machine_killed"
    values, run = half_written(scheduler, pipeline)

    stager.kill()
    recovery.last_fault()
    scheduler.produce(pipeline, {0: ["later"]})
    start_worker(airflow, other.name, "staging")
    airflow.let_go(pipeline)

    assert scheduler.wait(pipeline, run) == "success"
    assert scheduler.epoch(pipeline, 1) == ("COMMITTED", 2)
    assert [host for host, _ in scheduler.query(ATTEMPTS, pipeline)] == ["stager", "other"]
    scheduler.assert_exact(pipeline, values)
    recovery.took()


@celery
@pytest.mark.fault("F54", "F7")
def test_a_machine_that_was_cut_off_writes_nothing_that_counts(
    airflow: OwnAirflow, stager: Machine, other: Machine, recovery: Recovery
) -> None:
    """INV-4: what has not ended there reaches the servers again, once another machine has staged the range."""
    scheduler, pipeline = airflow.scheduler, "machine_cut_off"
    values, run = half_written(scheduler, pipeline)
    eventually(
        "another part is being copied", lambda: "idle in transaction" in scheduler.sessions(pipeline), every=0.05
    )

    stager.cut_off()
    recovery.last_fault()
    start_worker(airflow, other.name, "staging")
    # The first attempt waits for this file on its own machine, which has none yet.
    (other.home / "epochline" / f"{pipeline}-may-go").touch()
    eventually("the retry is sealed", lambda: scheduler.epoch(pipeline, 1)[0] in ("PRE_COMMITTED", "COMMITTED"))
    drivers = [one for one in stager.processes() if "java" in arguments_of(one)]
    airflow.let_go(pipeline)
    stager.plug_in()

    assert scheduler.wait(pipeline, run) == "success"
    assert scheduler.epoch(pipeline, 1) == ("COMMITTED", 2)
    assert scheduler.query(ATTEMPTS, pipeline) == [("stager", "FENCED"), ("other", "COMMITTED")]
    eventually("its driver ends by itself", lambda: not [one for one in drivers if one.is_running()], 120)
    scheduler.assert_exact(pipeline, values)
    recovery.took()


@celery
def test_a_message_that_is_delivered_again_while_its_task_runs_begins_no_second_try(
    airflow: OwnAirflow, stager: Machine, other: Machine
) -> None:
    """F6: an epoch takes longer than the broker waits for the end of a task."""
    scheduler, pipeline = airflow.scheduler, "delivered_twice"
    values, run = half_written(scheduler, pipeline)

    start_worker(airflow, other.name, "staging")
    log = other.folder / "log"
    eventually("the message is delivered again", lambda: "ignoring redelivered message" in log.read_text())
    airflow.let_go(pipeline)

    assert scheduler.wait(pipeline, run) == "success"
    assert scheduler.epoch(pipeline, 1) == ("COMMITTED", 1)
    scheduler.assert_exact(pipeline, values)


@celery
def test_files_on_the_disk_of_another_machine_are_missed_before_the_commit(
    airflow: OwnAirflow, stager: Machine
) -> None:
    """INV-6: no offset moves past rows that nobody could show."""
    scheduler, pipeline = airflow.scheduler, "files_apart"
    scheduler.prepare(pipeline, {p: [f"only-{p}"] for p in range(4)})

    run = scheduler.trigger(pipeline)

    assert scheduler.wait(pipeline, run) == "failed"
    said = scheduler.log(pipeline, run, "commit_epoch")
    assert "of planner lacks sealed files. Nothing was committed." in said
    assert f"epochline abort {pipeline} 1 --reason" in said
    assert scheduler.epoch(pipeline, 1)[0] == "PRE_COMMITTED"
    assert scheduler.heads(pipeline) == dict.fromkeys(range(4), 0)
    command = [f"{airflow.folder}/venv/bin/epochline", "abort", pipeline, "1", "--reason", "a test", "--yes"]
    subprocess.run(command, check=True, **airflow.here())
    assert scheduler.epoch(pipeline, 1)[0] == "ABORTED"
