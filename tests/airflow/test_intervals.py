"""What Airflow's timetables give a backfill run, asked of the installed Airflow without a scheduler."""

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
from tests.airflow.interpreter import answer_without_airflow

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
