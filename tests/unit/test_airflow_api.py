"""What `epochline trigger` makes of Airflow's answers, over HTTP and of the epochs that come of a run."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from epochline.adapters import Adapters
from epochline.cli import trigger
from epochline.cli import trigger as module
from epochline.errors import AirflowUnavailableError, StackError
from epochline.local.airflow_api import SILENT_SCHEDULER, AirflowApi, DagState, new_run_id, why_it_failed, why_it_waits
from tests.commands import Call, caller

HEALTHY = {"scheduler": {"status": "healthy"}}
DAG = {"is_paused": False, "next_dagrun_run_after": None, "max_active_runs": 1}
BROKEN = (500, {"detail": {"reason": "Database error", "statement": "hidden"}})


def task(name: str, state: str | None, pool: str = "default_pool") -> dict[str, Any]:
    return {"task_id": name, "state": state, "try_number": 1, "pool": pool, "pool_slots": 1}


class Server(ThreadingHTTPServer):
    """Answers each path with the next of its answers; the last one is given again."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(f"http://127.0.0.1:{self.server_port}")

    def says(self, **answers: Any) -> None:
        runs = "/api/v2/dags/shop/dagRuns"
        paths = {
            "health": "/api/v2/monitor/health", "dag": "/api/v2/dags/shop", "running": runs, "run": f"{runs}/second",
            "tasks": f"{runs}/second/taskInstances", "tasks_of_first": f"{runs}/first/taskInstances",
            "pool": "/api/v2/pools/small", "tries": f"{runs}/second/taskInstances/plan_epoch/tries",
            "log": f"{runs}/second/taskInstances/plan_epoch/logs/1",
        }  # fmt: skip
        for name, answer in answers.items():
            self.answers[paths[name]] = answer if isinstance(answer, list) else [(200, answer)]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        length = int(self.headers.get("Content-Length") or 0)
        self.server.asked.append((self.command, path, json.loads(self.rfile.read(length)) if length else None))
        answers = self.server.answers[path]
        code, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - the names that the base class looks for

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def airflow() -> Iterator[Server]:
    with Server() as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        server.says(health=HEALTHY, dag=DAG)
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigger, "_LOOK_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(trigger, "STUCK_AFTER_SECONDS", 0.0)


def test_a_run_is_followed_through_a_database_that_is_away_and_the_wait_is_said_once(
    airflow: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = (200, {"state": "success"})
    airflow.says(run=[(200, {"state": "running"}), BROKEN, (503, {}), (502, {}), BROKEN, ended])
    airflow.says(tasks={"task_instances": [task("plan_epoch", "success")]})

    assert trigger._follow(airflow.api, "shop", "second", lambda: None) == "success"

    said = capsys.readouterr().err
    assert said.count("waiting for up to 2 min: ") == 1
    assert "HTTP 500: Database error)" in said


def test_a_server_that_stays_away_ends_the_wait_and_names_the_command(
    airflow: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger, "PATIENCE_SECONDS", 0.05)
    api = airflow.api
    airflow.server_close()

    with pytest.raises(AirflowUnavailableError, match="refused.*`epochline up` starts again what crashed"):
        trigger._follow(api, "shop", "second", lambda: None)


def test_a_refusal_is_not_asked_again(airflow: Server) -> None:
    airflow.says(run=[(403, {"detail": "not yours"}), (200, {"state": "success"})])

    with pytest.raises(StackError, match="HTTP 403: not yours") as refused:
        trigger._follow(airflow.api, "shop", "second", lambda: None)
    assert not refused.value.retryable


def test_a_request_that_is_sent_again_starts_no_second_run(airflow: Server) -> None:
    """The first request was carried out, and its answer was lost."""
    airflow.says(running=[BROKEN, (409, {"detail": "the run exists"})])

    run_id = trigger._patiently(airflow.api.trigger, "shop", {}, None, "manual__mine")

    assert run_id == "manual__mine"
    assert [body["dag_run_id"] for method, _, body in airflow.asked if method == "POST"] == ["manual__mine"] * 2
    assert new_run_id() != new_run_id()


@pytest.mark.parametrize(
    ("started_at", "said"), [(1_000.0, SILENT_SCHEDULER), (1_001.0, "scheduler has not reported since it was started")]
)
def test_a_scheduler_that_starts_is_not_taken_for_one_that_reports_no_more(
    airflow: Server, started_at: float, said: str
) -> None:
    """U1: `epochline up` starts the second kind again. Airflow calls both unhealthy."""
    heartbeat = "1970-01-01T00:16:40+00:00"
    airflow.says(health={"scheduler": {"status": "unhealthy", "latest_scheduler_heartbeat": heartbeat}})

    assert airflow.api.health({"scheduler": started_at}) == said


QUEUED: tuple[str, list[Any]] = ("queued", [])
POOL = ("running", [task("plan_epoch", "success"), task("pre_commit", "queued", "small")])


@pytest.mark.parametrize(
    ("run", "answers", "why"),
    [
        (
            QUEUED,
            {"running": {"dag_runs": [{"dag_run_id": "first"}]}},
            "run first is running (plan_epoch is success, pre_commit is running), and the DAG runs 1 at a time",
        ),
        (QUEUED, {"running": {"dag_runs": []}}, "the scheduler has not taken the run yet"),
        (QUEUED, {"dag": {**DAG, "is_paused": True}}, "DAG shop is paused; unpause it in Airflow"),
        (
            QUEUED,
            {"health": {"scheduler": {"status": "unhealthy", "latest_scheduler_heartbeat": "12:00"}}},
            "the scheduler has not reported since 12:00; `epochline up` starts it again",
        ),
        (POOL, {"pool": {"open_slots": 0, "slots": 2}}, "pre_commit waits for a slot of pool small: 2 of 2 are taken"),
        (POOL, {"pool": {"open_slots": 1, "slots": 2}}, "pre_commit is queued, and no worker has taken it yet"),
        (("running", [task("pre_commit", "up_for_retry")]), {}, "pre_commit waits for its next try"),
        (("running", [task("pre_commit", "running")]), {}, None),
    ],
    ids=["an earlier run", "not taken", "paused", "no scheduler", "a full pool", "no worker", "a retry", "at work"],
)
def test_a_run_that_makes_no_progress_says_once_what_it_waits_for(
    airflow: Server, capsys: pytest.CaptureFixture[str], run: tuple[str, Any], answers: dict[str, Any], why: str | None
) -> None:
    state, tasks = run
    airflow.says(**answers)
    airflow.says(tasks_of_first={"task_instances": [task("plan_epoch", "success"), task("pre_commit", "running")]})
    airflow.says(tasks={"task_instances": tasks}, run=[*[(200, {"state": state})] * 4, (200, {"state": "success"})])

    trigger._follow(airflow.api, "shop", "second", lambda: None)

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("  run ")]
    assert lines == ([] if why is None else [f"  run second is {state}: {why}"])
    assert why_it_waits(airflow.api, "shop", "second", state, airflow.api.task_states("shop", "second")) == why


def test_a_run_failed_by_what_its_task_raised_whatever_caused_it(airflow: Server) -> None:
    """Airflow lists what was raised first, and its causes after it."""
    tries = [{**task("plan_epoch", "failed"), "start_date": "2026-11-24T12:00:00Z"}]
    raised = [
        {"exc_value": "SourceUnavailableError: shop: no broker\nanswers"},
        {"exc_value": "shop: no broker\nanswers"},
        {"exc_value": "[Errno 111] refused"},
    ]
    airflow.says(tasks={"task_instances": tries}, tries={"task_instances": tries})
    airflow.says(log={"content": [{"event": "begun"}, {"event": "failed", "error_detail": raised}]})

    assert why_it_failed(airflow.api, "shop", "second") == "plan_epoch: shop: no broker answers"


def test_a_dag_that_airflow_does_not_have_is_none(airflow: Server) -> None:
    airflow.says(dag=[(404, {"detail": "no such DAG"})])
    assert airflow.api.dag("shop") is None

    airflow.says(dag={**DAG, "next_dagrun_run_after": "2026-11-24T12:00:00Z"})
    dag = airflow.api.dag("shop")
    assert isinstance(dag, DagState)
    assert dag.next_run is not None
    assert dag.next_run.isoformat() == "2026-11-24T12:00:00+00:00"


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
