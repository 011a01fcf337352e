"""One PostgreSQL holds Airflow's tables, ledger and targets; it crashes while Spark writes."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.airflow.checker import assert_exact
from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.half_way import held, let_go, some_parts_but_not_all
from tests.crash.reliability import Recovery


@pytest.mark.fault("F13")
@pytest.mark.slow
def test_a_crash_of_the_server_that_airflow_shares_loses_and_doubles_nothing(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F13, I1, I7: an immediate stop; whatever became of the run, the schedule's next ones commit everything."""
    values = held("shared_server")
    scheduler.prepare("shared_server", values)
    first = scheduler.trigger("shared_server")
    some_parts_but_not_all(scheduler, "shared_server")

    postgres = scheduler.stack.postgres
    assert postgres.pid is not None
    postmaster = psutil.Process(postgres.pid)
    postmaster.send_signal(signal.SIGQUIT)  # as `pg_ctl stop -m immediate`
    postmaster.wait(30)
    recovery.last_fault()
    let_go(scheduler, "shared_server")
    # What a service manager does: start again what ended.
    eventually("everything runs", lambda: _started(scheduler), 120, every=1)

    outcome = scheduler.wait("shared_server", first)
    if outcome != "success":
        assert scheduler.run("shared_server")["run"] == "success"

    assert_exact(scheduler, "shared_server", values)
    recovery.took()


def _started(scheduler: Scheduler) -> bool:
    scheduler.stack.up(parts=("postgres", "kafka", "airflow"), report=lambda _line: None)
    return scheduler.stack.airflow.health() is None
