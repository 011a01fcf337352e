"""What Airflow's timetables give a backfill run, asked of the installed Airflow without a scheduler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow.interpreter import answer_of, without_airflow

ROOT = Path(__file__).parents[2]

ASK = """
import json, sys
import warnings; warnings.simplefilter("ignore")
from datetime import UTC, datetime, timedelta
from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.airflow.dag import build_dag
from airflow.serialization.serialized_objects import DagSerialization

def intervals(schedule):
    dag = build_dag(Pipeline(
        name="p", source=KafkaSource(topics="t"), parse=Text(), schedule=schedule,
        sinks=[PostgresTable(table="t", columns={"value": "text"})],
    ))
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    since, until = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)
    found = stored.iter_dagrun_infos_between(since, until)
    return [[i.data_interval.start.isoformat(), i.data_interval.end.isoformat()] for i in found]

print("ANSWER" + json.dumps({
    "every day": intervals(timedelta(days=1)), "cron": intervals("0 6 * * *"), "preset": intervals("@daily"),
}))
"""


@pytest.fixture(scope="module")
def intervals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    return answer_of(ASK, environment=without_airflow(tmp_path_factory.mktemp("airflow")))  # type: ignore[no-any-return]


@pytest.mark.parametrize("schedule", ["every day", "cron", "preset"])
def test_the_runs_of_a_backfill_have_intervals_that_follow_each_other(
    intervals: dict[str, list[list[str]]], schedule: str
) -> None:
    """INV-8, K14: by default Airflow gives both kinds of schedule empty intervals, which would bound nothing."""
    found = [[datetime.fromisoformat(text) for text in one] for one in intervals[schedule]]

    assert len(found) >= 2
    assert {until - start for start, until in found} == {timedelta(days=1)}
    assert [until for _, until in found[:-1]] == [start for start, _ in found[1:]]


def context(run_type: str, start: datetime | None, until: datetime | None) -> dict[str, Any]:
    run = SimpleNamespace(dag_id="p", run_id="r", run_type=run_type, data_interval_start=start, data_interval_end=until)
    return {"dag_run": run}


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_only_a_backfill_run_has_an_interval() -> None:
    """INV-8: the dates of a scheduled or manual run decide nothing."""
    from airflow.utils.types import DagRunType

    from epochline.airflow.connections import interval_of
    from epochline.protocol.epoch import Interval

    later = NOON + timedelta(hours=1)

    assert interval_of(context(DagRunType.BACKFILL_JOB, NOON, later)) == Interval(start=NOON, until=later)
    assert interval_of(context(DagRunType.SCHEDULED, NOON, later)) is None
    assert interval_of(context(DagRunType.MANUAL, None, None)) is None


@pytest.mark.parametrize("until", [NOON, None], ids=["empty", "none"])
def test_a_backfill_run_without_an_interval_is_refused(until: datetime | None) -> None:
    from epochline.airflow.connections import interval_of
    from epochline.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="has no data interval"):
        interval_of(context("backfill", NOON, until))
