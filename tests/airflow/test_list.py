"""`epochline list` beside a real Airflow."""

import json
from datetime import datetime
from typing import Any

import pytest

from tests.airflow.conftest import Scheduler, eventually
from tests.commands import caller
from tests.conftest import AIRFLOW_DAGS


def test_the_next_run_is_the_one_that_airflow_says_and_a_paused_dag_has_none(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler.prepare("listed", {})
    monkeypatch.setenv("EPOCHLINE_HOME", str(scheduler.stack.home.root))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(AIRFLOW_DAGS))
    call = caller(monkeypatch, capsys)

    def listed() -> dict[str, Any]:
        rows: list[dict[str, Any]] = json.loads(call("list", "--json")[1])
        return next(row for row in rows if row["pipeline"] == "listed")

    paused = listed()
    assert (paused["dag_paused"], paused["next_run"], paused["schedule"]) == (True, None, "28 days, 0:00:00")
    assert "DAG paused" in call("list")[1]

    def agreed() -> bool:
        shown, said = (listed()["next_run"], scheduler.call("GET", "/api/v2/dags/listed")["next_dagrun_run_after"])
        return bool(shown and said) and datetime.fromisoformat(shown) == datetime.fromisoformat(said)

    scheduler.pause("listed", False)
    try:
        eventually("the list shows when Airflow starts the next run", agreed, 60, every=1)
    finally:
        scheduler.pause("listed", True)
