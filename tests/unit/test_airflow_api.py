"""What `epochline trigger` makes of Airflow's answers, over HTTP and of the epochs that come of a run."""

import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from epochline.adapters import Adapters
from epochline.cli import trigger
from epochline.cli import trigger as module
from epochline.cli.airflow_access import AirflowAccess, airflow_api
from epochline.cli.airflow_api import AirflowApi
from epochline.cli.airflow_runs import DagState, new_run_id, why_it_failed, why_it_waits
from epochline.errors import AirflowUnavailableError, ConfigurationError, StackError
from epochline.local.airflow import SILENT_SCHEDULER, reported_trouble
from tests.commands import Call, caller
from tests.integration.secure_kafka import make_certificates

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
        self.bearers: set[str | None] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def api(self) -> AirflowApi:
        access = AirflowAccess(url=f"http://127.0.0.1:{self.server_port}", where="a test", token="t", embedded=True)
        return AirflowApi(access, 5.0)

    def says(self, **answers: Any) -> None:
        runs = "/api/v2/dags/shop/dagRuns"
        paths = {
            "version": "/api/v2/version", "health": "/api/v2/monitor/health", "dag": "/api/v2/dags/shop", "running": runs, "run": f"{runs}/second",
            "tasks": f"{runs}/second/taskInstances", "tasks_of_first": f"{runs}/first/taskInstances",
            "pool": "/api/v2/pools/small", "token": "/auth/token", "tries": f"{runs}/second/taskInstances/plan_epoch/tries",
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
        self.server.bearers.add(self.headers.get("Authorization"))
        answers = self.server.answers[path]
        code, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(code)
        if "Location" in (body or ()):
            self.send_header("Location", body["Location"].format(port=self.server.server_port))
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - the names that the base class looks for

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def airflow() -> Iterator[Server]:
    with Server() as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        server.says(version={"version": "3.3.2"}, health=HEALTHY, dag=DAG)
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
def test_a_scheduler_that_starts_is_not_taken_for_one_that_reports_no_more(started_at: float, said: str) -> None:
    """U1: `epochline up` starts the second kind again. Airflow calls both unhealthy."""
    heartbeat = "1970-01-01T00:16:40+00:00"
    health = {"scheduler": {"status": "unhealthy", "latest_scheduler_heartbeat": heartbeat}}

    assert reported_trouble(health, {"scheduler": started_at}) == said


SECRETS = ("a-token", "a-password")


class _Front(BaseHTTPRequestHandler):
    """What stands before an Airflow: the server's ``leads_to`` is where it redirects to, and it notes what it is sent."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.sent.append(f"{self.headers}{self.rfile.read(length).decode()}")  # type: ignore[attr-defined]
        self.send_response(302)
        self.send_header("Location", f"{self.server.leads_to}{self.path}")  # type: ignore[attr-defined]
        self.end_headers()

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def front() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Front) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        server.sent = []  # type: ignore[attr-defined]
        yield server
        server.shutdown()


def named(monkeypatch: pytest.MonkeyPatch, port: int, path: str = "", **more: str) -> AirflowApi:
    login = {"TOKEN": SECRETS[0], "USER": "ada", "PASSWORD": SECRETS[1]} | more
    for name, value in {"URL": f"http://127.0.0.1:{port}{path}", **login}.items():
        monkeypatch.setenv(f"EPOCHLINE_AIRFLOW_{name}", value)
    return airflow_api()


def test_a_redirect_and_a_path_before_the_api_lead_to_airflow_and_one_to_another_host_is_sent_no_secret(
    airflow: Server, front: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.answers |= {f"/airflow{path}": answers for path, answers in airflow.answers.items()}
    front.leads_to = f"http://127.0.0.1:{airflow.server_port}/airflow"
    assert named(monkeypatch, airflow.server_port, "/airflow/").dag("shop") is not None
    assert named(monkeypatch, front.server_port).dag("shop") is not None
    assert not [sent for sent in front.sent if SECRETS[0] in sent]
    airflow.bearers.clear()

    front.leads_to = f"http://localhost:{airflow.server_port}/airflow"
    with pytest.raises(StackError, match="leads to http://localhost:.*/airflow. No token and no login was sent there"):
        named(monkeypatch, front.server_port).dag("shop")
    assert airflow.bearers == {None}


def test_what_lets_nobody_in_without_a_token_is_shown_it_with_the_first_request(
    airflow: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.says(version=[(401, {}), (200, {"version": "3.3.2"})])

    assert named(monkeypatch, airflow.server_port).dag("shop") is not None
    assert airflow.bearers == {None, f"Bearer {SECRETS[0]}"}


@pytest.mark.parametrize(
    ("name", "status", "body", "said"),
    [
        ("dag", 401, {"detail": "Invalid"}, "does not accept the token of EPOCHLINE_AIRFLOW_TOKEN (HTTP 401: Invalid)"),
        ("dag", 403, {"detail": "Invalid JWT token"}, "does not accept the token of EPOCHLINE_AIRFLOW_TOKEN (HTTP 403:"),
        ("dag", 403, {"detail": "Forbidden"}, "EPOCHLINE_AIRFLOW_TOKEN show DAG shop (HTTP 403: Forbidden); give its"),
        ("dag", 503, {}, "failed to show DAG shop (HTTP 503); start its API server, or correct EPOCHLINE_AIRFLOW_URL"),
        ("dag", 422, {"detail": "No"}, "refused to show DAG shop (HTTP 422: No)"),
        ("version", 404, {"detail": "Not Found"}, "does not answer as the API of Airflow 3 does (HTTP 404: Not Found)"),
        ("version", 200, {"title": "a page"}, "without /home or /api/v2 at its end"),
        ("version", 200, None, "does not answer as the API of Airflow 3 does"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_address_and_what_to_change_but_no_secret(
    airflow: Server, monkeypatch: pytest.MonkeyPatch, name: str, status: int, body: Any, said: str
) -> None:
    """SEC-4: whatever the other side answers."""
    airflow.says(**{name: [(status, body)]})

    with pytest.raises(StackError) as raised:
        named(monkeypatch, airflow.server_port).dag("shop")

    assert f"http://127.0.0.1:{airflow.server_port}" in str(raised.value)
    assert said in str(raised.value)
    assert not any(secret in str(raised.value) for secret in SECRETS)
    assert raised.value.retryable is (status == 503)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((201, {"access_token": "got"}), None),
        ((401, {"detail": "Invalid credentials"}), "does not accept the login ada of EPOCHLINE_AIRFLOW_USER"),
        ((404, {"detail": "Not Found"}), "gives no token for a login (HTTP 404). Set EPOCHLINE_AIRFLOW_TOKEN"),
        ((200, {}), "its answer has none"),
        ((307, {"Location": "http://localhost:{port}/stolen"}), "refused to log in (HTTP 307)"),
    ],
)
def test_a_login_gets_a_token_once_and_a_file_may_hold_the_password(
    airflow: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: tuple[int, Any], said: str | None
) -> None:
    (tmp_path / "password").write_text(f"{SECRETS[1]}\n")
    airflow.says(token=[answer])
    api = named(monkeypatch, airflow.server_port, TOKEN="", PASSWORD="", PASSWORD_FILE=str(tmp_path / "password"))

    if said is None:
        assert api.dag("shop") == api.dag("shop")
        assert [one for one in airflow.asked if one[0] == "POST"] == [
            ("POST", "/auth/token", {"username": "ada", "password": SECRETS[1]})
        ]
        assert airflow.bearers == {None, "Bearer got"}
    else:
        with pytest.raises(StackError) as raised:
            api.dag("shop")
        assert said in str(raised.value)
        assert SECRETS[1] not in str(raised.value)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"URL": "airflow.example"}, "EPOCHLINE_AIRFLOW_URL has to be the address of Airflow's pages"),
        ({"URL": "https://ada:a-password@airflow.example"}, "without a login in it"),
        ({"TOKEN": "", "USER": ""}, "there is neither a token nor a login for it. Set EPOCHLINE_AIRFLOW_TOKEN, or"),
        ({"TOKEN_FILE": "/nowhere"}, "EPOCHLINE_AIRFLOW_TOKEN_FILE names /nowhere, which cannot be read"),
    ],
)
def test_an_address_without_a_login_or_with_one_in_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        named(monkeypatch, 1, **variables)

    assert said in str(raised.value)
    assert not any(secret in str(raised.value) for secret in SECRETS)


def test_a_certificate_is_checked_and_its_authority_may_be_named(
    airflow: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = make_certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.path("broker"), made.path("broker-key"))
    airflow.socket = tls.wrap_socket(airflow.socket, server_side=True)
    url = f"https://127.0.0.1:{airflow.server_port}"

    with pytest.raises(StackError, match=r"CERTIFICATE_VERIFY_FAILED.*export SSL_CERT_FILE=CA\.pem"):
        named(monkeypatch, 1, URL=url).dag("shop")
    monkeypatch.setenv("SSL_CERT_FILE", made.path("ca"))
    assert named(monkeypatch, 1, URL=url).dag("shop") is not None


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
        (("running", [task("plan_epoch", "up_for_reschedule")]), {}, "plan_epoch waits for its next try"),
        (("running", [task("pre_commit", "running")]), {}, None),
    ],
    ids=[
        "an earlier run",
        "not taken",
        "paused",
        "no scheduler",
        "a full pool",
        "no worker",
        "a retry",
        "a wait",
        "at work",
    ],
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

    monkeypatch.setattr(module, "airflow_api", lambda: api)
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

    monkeypatch.setattr(module, "airflow_api", Interrupted)
    monkeypatch.setattr(Adapters, "postgres_dsn", lambda adapters, connection: "postgresql://")
    monkeypatch.setattr(module, "_ask", lambda ledger, pipeline, query: {"epoch_id": 6, "paused_at": None})

    code, out, err = call()

    assert (code, out) == (130, "")
    assert err.endswith(
        "run manual__1 goes on in Airflow; `epochline logs orders --follow` follows its epoch\ninterrupted\n"
    )
