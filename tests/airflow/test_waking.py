"""Records that wait start runs, under a real scheduler and triggerer, without a clock and without a person."""

from contextlib import suppress
from typing import Any

import psutil
import pytest

from epochline.config.discovery import find
from epochline.local.airflow_api import FINISHED
from tests.airflow.conftest import Scheduler, eventually
from tests.conftest import AIRFLOW_DAGS
from tests.crash.reliability import Recovery
from tests.integration.kafka_topics import transactional_producer

GAPS = (
    "SELECT next.planned_at - before.committed_at FROM epochline.epochs before JOIN epochline.epochs next"
    " ON next.pipeline = before.pipeline AND next.epoch_id = before.epoch_id + 1"
    " WHERE before.pipeline = %s AND before.state = 'COMMITTED'"
)


@pytest.fixture(autouse=True)
def _looked_for(scheduler: Scheduler) -> None:
    scheduler.read_again("woken")


def rows(scheduler: Scheduler, pipeline: str) -> list[str]:
    return sorted(value for (value,) in scheduler.query(f"SELECT value FROM {pipeline}"))


def shown(scheduler: Scheduler, pipeline: str, count: int) -> None:
    """Wait until so many rows are visible and their run has ended; an epoch may end between two produced records."""
    eventually(f"{pipeline} shows {count} rows", lambda: len(rows(scheduler, pipeline)) == count)
    eventually("its run has ended", lambda: {run["state"] for run in runs(scheduler, pipeline)} <= FINISHED)


def runs(scheduler: Scheduler, pipeline: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scheduler.call("GET", f"/api/v2/dags/{pipeline}/dagRuns")["dag_runs"]
    return found


def run_types(scheduler: Scheduler, pipeline: str) -> set[str]:
    return {run["run_type"] for run in runs(scheduler, pipeline)}


def test_records_start_runs_at_most_once_per_interval_and_an_open_transaction_starts_none(
    scheduler: Scheduler,
) -> None:
    """K23, INV-8: the ledger's own times say that the interval was kept."""
    declared = find("woken", AIRFLOW_DAGS)
    assert declared.schedule is None
    assert declared.wake_on_data is not None
    scheduler.prepare("woken", {0: ["a"], 1: ["b"]})
    scheduler.prepare("woken_beside", {})
    for number in range(1, 4):
        shown(scheduler, "woken", 1 + number)
        scheduler.produce("woken", {number: [f"later {number}"]})
    shown(scheduler, "woken", 5)
    epochs = scheduler.committed("woken")

    with transactional_producer(
        scheduler.stack.kafka.bootstrap_servers, "woken", transaction_timeout_ms=600_000
    ) as producer:
        producer.begin_transaction()
        producer.send("woken", value=b"in a transaction", partition=0).get(30)
        # One look sees both pipelines, and it has seen the other since the transaction was opened.
        scheduler.produce("woken_beside", {0: ["beside"]})
        shown(scheduler, "woken_beside", 1)
        assert scheduler.committed("woken") == epochs
        producer.commit_transaction()
    shown(scheduler, "woken", 6)

    assert rows(scheduler, "woken") == ["a", "b", "in a transaction", "later 1", "later 2", "later 3"]
    gaps = [gap for (gap,) in scheduler.query(GAPS, "woken")]
    assert len(gaps) >= 4
    assert min(gaps) >= declared.wake_on_data
    assert run_types(scheduler, "woken") == {"asset_triggered"}


@pytest.mark.fault("F40")
def test_after_the_triggerer_was_killed_what_was_produced_meanwhile_is_woken_for(
    scheduler: Scheduler, recovery: Recovery
) -> None:
    """F40, I1, I2, I6: SIGKILL for the triggerer and what it started."""
    values = {0: ["a", "b"], 1: ["c"], 2: [], 3: []}
    scheduler.prepare("woken_late", values)
    shown(scheduler, "woken_late", 3)

    pid = scheduler.stack.airflow.pids["triggerer"]
    assert pid is not None
    triggerer = psutil.Process(pid)
    for process in [triggerer, *triggerer.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    recovery.last_fault()
    late = {0: ["d"], 2: ["e", "f"]}
    scheduler.produce("woken_late", late)
    scheduler.stack.up(parts=("kafka", "airflow"))

    shown(scheduler, "woken_late", 6)
    scheduler.assert_exact("woken_late", {p: [*some, *late.get(p, ())] for p, some in values.items()})
    recovery.took()
