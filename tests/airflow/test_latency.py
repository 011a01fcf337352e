"""The interval of a schedule and the latency of records under a real scheduler, from stored times alone (K8, G7)."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.airflow.conftest import Scheduler, eventually

INTERVAL = timedelta(seconds=20)
SLOW = "sleep 30"
EPOCHS = 5
STORED = (
    "SELECT epoch_id, run_id, committed_at, since_previous_seconds, interval_kept, longest_latency_seconds"
    " FROM epochline.phases JOIN epochline.epochs USING (pipeline, epoch_id)"
    " WHERE pipeline = 'ticking' AND state = 'COMMITTED' ORDER BY epoch_id"
)


@pytest.fixture
def epochs(scheduler: Scheduler) -> list[Any]:
    """What the ledger stored of some epochs, while a record arrived each second; one epoch is longer than the interval."""
    scheduler.prepare("ticking", {})
    scheduler.pause("ticking", False)
    produced: list[str] = []

    def another() -> bool:
        done = len(scheduler.query(STORED))
        produced.append(SLOW if done and SLOW not in produced else "value")
        scheduler.produce("ticking", {0: produced[-1:]})
        return done >= EPOCHS

    try:
        eventually("the epochs are committed", another, every=1)
    finally:
        scheduler.pause("ticking", True)
    return scheduler.query(STORED)


@pytest.mark.slow
def test_epochs_keep_their_interval_and_no_record_waits_longer_than_it_and_a_run(
    scheduler: Scheduler, epochs: list[Any]
) -> None:
    """K8, G7: and an epoch that makes the next one late is named by the next plan's log and by the ledger.

    A record that missed a plan arrived after that plan's run had started. So it is visible at most the time between the
    starts of two runs, plus what its own run took, after it arrived: the interval and the run's time.
    """
    plans = [
        datetime.fromisoformat(scheduler.call("GET", f"/api/v2/dags/ticking/dagRuns/{run}")["run_after"])
        for _, run, *_ in epochs
    ]
    between = [later - earlier for earlier, later in pairwise(plans)]
    assert min(between) <= INTERVAL + timedelta(seconds=1), "some runs follow each other at the interval"
    for started, interval, (number, _, committed_at, since_previous, _, latency) in zip(
        plans[1:], between, epochs[1:], strict=True
    ):
        run_time = committed_at - started
        assert since_previous >= INTERVAL.total_seconds(), number
        assert 0 < latency <= (interval + run_time).total_seconds(), number

    followed = [(number, next_run) for (number, *_, kept, _), (_, next_run, *_) in pairwise(epochs) if not kept]
    assert followed
    for number, next_run in followed:
        said = scheduler.log("ticking", next_run, "plan_epoch")
        assert f"the interval of 20 s was not kept: epoch {number} of ticking took" in said
