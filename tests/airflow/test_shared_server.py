"""One PostgreSQL holds Airflow's tables, ledger and targets; it crashes while Spark writes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from epochline.cli.airflow_runs import FINISHED
from epochline.errors import StackError
from epochline.local.airflow import SILENT_SCHEDULER
from tests.airflow.conftest import Scheduler, eventually, processes
from tests.airflow.half_way import half_written, let_go
from tests.conftest import AIRFLOW_DAGS
from tests.crash.reliability import Recovery


@pytest.mark.fault("F13")
@pytest.mark.slow
def test_a_crash_of_the_server_that_airflow_shares_loses_and_doubles_nothing(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F13, I1, I7: an immediate stop; whatever became of the run, the schedule's next ones commit everything."""
    values, run = half_written(scheduler, "shared_server")

    crash(scheduler)
    recovery.last_fault()
    let_go(scheduler, "shared_server")
    start_again(scheduler)

    if end_of(scheduler, "shared_server", run) != "success":
        assert end_of(scheduler, "shared_server", scheduler.trigger("shared_server")) == "success"
    scheduler.assert_exact("shared_server", values)
    recovery.took()


WAITS = "waiting for up to 2 min: "


@pytest.mark.fault("F13")
def test_trigger_says_where_a_run_waits_and_follows_it_through_a_crash_of_the_server(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    """U1: no task runs meanwhile, so that nothing but the command has to survive."""
    values = {p: [f"p{p}"] for p in range(4)}
    scheduler.prepare("followed", values)
    scheduler.pause("followed", True)
    with ExitStack() as block:
        with scheduler.slots(0):
            command = block.enter_context(following(scheduler, "followed", tmp_path))
            eventually("it says what it waits for", lambda: "plan_epoch waits for a slot of pool" in said(tmp_path), 60)
            crash(scheduler)
            eventually("it says that it waits", lambda: WAITS in said(tmp_path), 60)
            start_again(scheduler)

        eventually("the command ends", restarting(scheduler, lambda: command.poll() is not None), 180, every=1)

    assert command.returncode == 0, said(tmp_path)
    # A second time at most: the API may meet a connection that the crash broke.
    assert said(tmp_path).count(WAITS) in (1, 2)
    assert "epoch 1 of followed is committed: 4 records read" in (tmp_path / "out").read_text()
    scheduler.assert_exact("followed", values)


@pytest.mark.slow
def test_up_starts_a_scheduler_again_that_neither_reports_nor_runs_a_task(scheduler: Scheduler) -> None:
    """U1: it hangs and does not end, so that nothing else would start it again."""
    airflow = scheduler.stack.airflow
    pid = airflow.pids["scheduler"]
    assert pid is not None
    psutil.Process(pid).suspend()
    eventually("Airflow knows", lambda: airflow.health() == SILENT_SCHEDULER, 60)

    start_again(scheduler)

    assert airflow.pids["scheduler"] not in (pid, None)
    values = {p: [f"p{p}"] for p in range(4)}
    scheduler.prepare("after_hanging", values)
    assert scheduler.run("after_hanging")["run"] == "success"
    scheduler.assert_exact("after_hanging", values)


def crash(scheduler: Scheduler) -> None:
    postgres = scheduler.stack.postgres
    assert postgres.pid is not None
    postmaster = psutil.Process(postgres.pid)
    postmaster.send_signal(signal.SIGQUIT)  # as `pg_ctl stop -m immediate`
    postmaster.wait(30)


def start_again(scheduler: Scheduler) -> None:
    def started() -> bool:
        with suppress(StackError):  # A part that broke down with the server ends while others start.
            scheduler.stack.up(parts=("postgres", "kafka", "airflow"), report=lambda _line: None)
        return scheduler.stack.airflow.health() is None

    try:
        eventually("everything runs", started, 120, every=1)
    except AssertionError:
        pytest.fail(what_runs(scheduler))


def what_runs(scheduler: Scheduler) -> str:
    """Why Airflow is not healthy, what its workers do, and what the scheduler wrote last."""
    airflow = scheduler.stack.airflow
    workers = sorted(command[0] for _, command in processes() if command[0].startswith("airflow worker"))
    return "\n".join([str(airflow.health()), *workers, airflow.daemons["scheduler"].log_tail()])


def restarting(scheduler: Scheduler, check: Callable[[], bool]) -> Callable[[], bool]:
    """The check beside a service manager: a part that still runs right after the crash may give up later."""

    def checked() -> bool:
        start_again(scheduler)
        return check()

    return checked


def end_of(scheduler: Scheduler, pipeline: str, run: str) -> str:
    ended = restarting(scheduler, lambda: scheduler.state(pipeline, run) in FINISHED)
    eventually(f"{run} of {pipeline} ends", ended, every=1)
    return scheduler.state(pipeline, run)


@contextmanager
def following(scheduler: Scheduler, pipeline: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`epochline trigger` of a paused DAG in a process; what it writes is in the folder."""
    environment = {**os.environ, "EPOCHLINE_HOME": str(scheduler.stack.home.root), "EPOCHLINE_DAGS": str(AIRFLOW_DAGS)}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        command = subprocess.Popen(
            [sys.executable, "-c", "from epochline.cli import main; main()", "trigger", pipeline, "--unpause"],
            env=environment, stdout=out, stderr=err,
        )  # fmt: skip
        try:
            yield command
        finally:
            command.kill()
            command.wait()


def said(folder: Path) -> str:
    return (folder / "err").read_text()
