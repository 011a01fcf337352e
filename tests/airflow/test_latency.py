"""Epochs and their intervals under a real scheduler: when they come, what they read, and that backfills bound them."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.utils.types import DagRunType

from epochline.airflow.connections import interval_of
from epochline.errors import ConfigurationError
from epochline.protocol.epoch import Interval
from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.interpreter import answer_without_airflow

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


def test_a_dag_reads_a_growing_table_by_the_connection_of_its_source(scheduler: Scheduler) -> None:
    """N2: no topic, no group, and the job gets the connection in its credentials file."""
    scheduler.make_targets("growing")
    scheduler.query(
        "CREATE TABLE growing_events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, said text);"
        " INSERT INTO growing_events (said) SELECT 'row ' || n FROM generate_series(1, 30) n"
    )

    run = scheduler.run("growing")

    assert run.pop("abort_epoch") == "skipped"
    assert run == dict.fromkeys(("run", "plan_epoch", "pre_commit", "commit_epoch"), "success")
    assert scheduler.query("SELECT id, said FROM growing ORDER BY id") == scheduler.query(
        "SELECT id, said FROM growing_events ORDER BY id"
    )
    assert scheduler.heads("growing") == {0: 31}


def test_an_epoch_with_nothing_to_read_skips_its_run_and_keeps_its_origins(scheduler: Scheduler) -> None:
    """U1: no epoch row; then a partition is added, and nothing in it is missed (S2)."""
    scheduler.prepare("nothing", {})

    run_id = scheduler.trigger("nothing")

    assert scheduler.wait("nothing", run_id) == "success"
    run = scheduler.tasks("nothing", run_id)
    assert (run["plan_epoch"], run["commit_epoch"]) == ("skipped", "skipped")
    assert scheduler.outcome("nothing", run_id, "plan_epoch") == "no epoch · nothing to read · nothing to do"
    assert scheduler.query("SELECT count(*) FROM epochline.epochs WHERE pipeline = 'nothing'") == [(0,)]
    assert scheduler.heads("nothing") == {0: 0, 1: 0, 2: 0, 3: 0}


@pytest.mark.slow
def test_a_run_without_records_closes_the_windows_of_an_idle_source(scheduler: Scheduler) -> None:
    """E11: three tasks over no range; the next run, with nothing to read and nothing open, is skipped."""
    scheduler.prepare("closing", {0: ["a"]})
    assert scheduler.run("closing")["run"] == "success"
    assert scheduler.query("SELECT count(*) FROM closing") == [(0,)]

    run = scheduler.run("closing")

    assert (run["plan_epoch"], run["pre_commit"], run["commit_epoch"]) == ("success", "success", "success")
    assert scheduler.query("SELECT value, sum(times) FROM closing GROUP BY value") == [("a", 1)]
    kinds = scheduler.query("SELECT kind FROM epochline.epochs WHERE pipeline = 'closing' ORDER BY epoch_id")
    assert kinds == [("regular",), ("idle",)]
    assert scheduler.run("closing")["plan_epoch"] == "skipped"


ASK = """
import json, warnings; warnings.simplefilter("ignore")
from datetime import UTC, datetime, timedelta
from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.airflow.dag import build_dag
from airflow.serialization.serialized_objects import DagSerialization

def intervals(schedule, **more):
    dag = build_dag(Pipeline(
        name="p", source=KafkaSource(topics="t"), parse=Text(), schedule=schedule, **more,
        sinks=[PostgresTable(table="t", columns={"value": "text"})],
    ))
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    since, until = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)
    found = stored.iter_dagrun_infos_between(since, until)
    return [[i.data_interval.start.isoformat(), i.data_interval.end.isoformat()] for i in found]

print("ANSWER" + json.dumps({
    "every day": intervals(timedelta(days=1)), "cron": intervals("0 6 * * *"), "preset": intervals("@daily"),
    "woken": intervals(timedelta(days=1), wake_on_data=5), "woken cron": intervals("0 6 * * *", wake_on_data=5),
}))
"""


def test_the_runs_of_a_backfill_have_intervals_that_follow_each_other(tmp_path: Path) -> None:
    """INV-8, K14: by default Airflow gives both kinds of schedule empty intervals, which would bound nothing."""
    for schedule, intervals in answer_without_airflow(ASK, home=tmp_path).items():
        found = [(datetime.fromisoformat(start), datetime.fromisoformat(until)) for start, until in intervals]

        assert len(found) >= 2, schedule
        assert {until - start for start, until in found} == {timedelta(days=1)}, schedule
        assert all(before[1] == after[0] for before, after in pairwise(found)), schedule


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def context(run_type: str, start: datetime | None, until: datetime | None) -> dict[str, Any]:
    run = SimpleNamespace(dag_id="p", run_id="r", run_type=run_type, data_interval_start=start, data_interval_end=until)
    return {"dag_run": run}


def test_only_a_backfill_run_has_an_interval() -> None:
    """INV-8: the dates of a scheduled or manual run decide nothing."""
    later = NOON + timedelta(hours=1)

    assert interval_of(context(DagRunType.BACKFILL_JOB, NOON, later)) == Interval(start=NOON, until=later)
    assert interval_of(context(DagRunType.SCHEDULED, NOON, later)) is None
    assert interval_of(context(DagRunType.MANUAL, None, None)) is None


@pytest.mark.parametrize("until", [NOON, None], ids=["empty", "none"])
def test_a_backfill_run_without_an_interval_is_refused(until: datetime | None) -> None:
    with pytest.raises(ConfigurationError, match="has no data interval"):
        interval_of(context("backfill", NOON, until))
