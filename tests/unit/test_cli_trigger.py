"""What `epochline trigger` says of the epoch that took the records, without a stack."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from epochline.adapters import Adapters
from epochline.cli import trigger as module
from epochline.local.airflow_api import DagState
from tests.commands import Call, caller

EPOCH = {
    "epoch_id": 7, "state": "COMMITTED", "attempt": 1, "error": None, "records_read": 9, "records_passed": 8,
    "records_skipped": 0, "records_quarantined": 1, "rows_written": 8,
    "committed_at": datetime(2026, 3, 1, 12, tzinfo=UTC),
}  # fmt: skip


class Airflow:
    """An API whose DAG is paused and whose runs succeed; ``done`` is what it was asked to do."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def dag(self, dag: str) -> DagState:
        return DagState(paused=True, next_run=None, max_active_runs=1)

    def pause(self, dag: str, paused: bool) -> None:
        self.done.append("unpaused")

    def trigger(self, dag: str, conf: dict[str, Any], note: str | None, run_id: str) -> str:
        return "manual__1"

    def run_state(self, dag: str, run: str) -> str:
        return "success"

    def task_states(self, dag: str, run: str) -> list[SimpleNamespace]:
        return []


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys, "trigger", "orders", "--unpause")


@pytest.mark.parametrize(
    ("own", "after", "said"),
    [
        (EPOCH | {"run_id": "manual__1"}, None, "at 2026-03-01 12:00:00 UTC (run success)"),
        (None, EPOCH | {"run_id": "scheduled__1"}, "(by run scheduled__1, which took the records first)"),
        (None, None, "orders: nothing to read; run manual__1 was skipped"),
    ],
    ids=["its own run", "a run of the schedule", "nobody"],
)
def test_the_epoch_that_took_the_records_is_told_even_if_another_run_planned_it(
    call: Call, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any] | None, after: dict[str, Any] | None, said: str
) -> None:
    """U1: unpausing a DAG may start a run of its schedule first."""
    api, asked = Airflow(), []

    def ask(ledger: str, pipeline: str, query: str, **values: Any) -> dict[str, Any] | None:
        asked.append((query, list(api.done), values.get("epoch_id")))
        answers: dict[str, dict[str, Any] | None] = {
            "standing": {"paused_at": None}, "newest_epoch_id": {"epoch_id": 6}, "epoch_of_run": own,
            "epoch_committed_after": after,
        }  # fmt: skip
        return answers[query]

    monkeypatch.setattr(module, "stack_api", lambda: api)
    monkeypatch.setattr(Adapters, "postgres_dsn", lambda adapters, connection: "postgresql://")
    monkeypatch.setattr(module, "_ask", ask)

    code, out, _ = call()
    _, as_json, _ = call("--json")

    assert code == 0
    assert said in " ".join(out.split())
    told = json.loads(as_json)["epoch"]
    assert (told and told["run_id"]) == ((own or after or {}).get("run_id"))
    assert ("newest_epoch_id", [], None) in asked, "asked after the DAG was unpaused"
    assert ("epoch_committed_after", ["unpaused"], 6) in asked or own is not None


def test_ctrl_c_says_that_the_run_goes_on_and_how_to_follow_it(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Airflow):
        def run_state(self, dag: str, run: str) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "stack_api", Interrupted)
    monkeypatch.setattr(Adapters, "postgres_dsn", lambda adapters, connection: "postgresql://")
    monkeypatch.setattr(module, "_ask", lambda ledger, pipeline, query: {"epoch_id": 6, "paused_at": None})

    code, out, err = call()

    assert (code, out) == (130, "")
    assert err.endswith(
        "run manual__1 goes on in Airflow; `epochline logs orders --follow` follows its epoch\ninterrupted\n"
    )
