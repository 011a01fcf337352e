"""One PostgreSQL holds Airflow's tables, ledger and targets; it crashes while Spark writes."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.airflow.checker import assert_exact
from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.half_way import half_written, let_go
from tests.crash.reliability import Recovery


@pytest.mark.fault("F13")
@pytest.mark.slow
def test_a_crash_of_the_server_that_airflow_shares_loses_and_doubles_nothing(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F13, I1, I7: an immediate stop; whatever became of the run, the schedule's next ones commit everything."""
    values, run = half_written(scheduler, "shared_server")

    postgres = scheduler.stack.postgres
    assert postgres.pid is not None
    postmaster = psutil.Process(postgres.pid)
    postmaster.send_signal(signal.SIGQUIT)  # as `pg_ctl stop -m immediate`
    postmaster.wait(30)
    recovery.last_fault()
    let_go(scheduler, "shared_server")

    def started() -> bool:
        """Start again what ended, as a service manager does."""
        scheduler.stack.up(parts=("postgres", "kafka", "airflow"), report=lambda _line: None)
        return scheduler.stack.airflow.health() is None

    eventually("everything runs", started, 120, every=1)

    if scheduler.wait("shared_server", run) != "success":
        assert scheduler.run("shared_server")["run"] == "success"
    assert_exact(scheduler, "shared_server", values)
    recovery.took()
