"""Beside a real Airflow: `epochline list`, `epochline logs` and `epochline airflow`, and what an intruder finds there."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
from airflow.plugins_manager import AirflowPlugin
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from packaging.requirements import Requirement
from starlette.routing import Mount, Route

from epochline.airflow.dag import build_dag
from epochline.airflow.operators import PlanEpochOperator
from epochline.airflow.pages.entry_point import EpochlinePlugin
from epochline.local import credentials
from tests.airflow.conftest import Scheduler, eventually
from tests.commands import Call, caller
from tests.conftest import AIRFLOW_DAGS
from tests.contract.worlds import orders
from tests.wheels import locked


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


@pytest.fixture
def call(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.setenv("EPOCHLINE_HOME", str(scheduler.stack.home.root))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(AIRFLOW_DAGS))
    return caller(monkeypatch, capsys)


def heads(out: str) -> list[str]:
    return [line.split(",")[0] + line.split(",")[1] for line in out.splitlines() if line.startswith("==== ")]


def test_the_logs_of_an_epoch_have_each_try_of_each_task_and_sparks_output(
    scheduler: Scheduler, call: Call, forgive: Path
) -> None:
    """A failed epoch is told as it happened; followed, the next one is told to its end."""
    scheduler.prepare("logged", {0: ["good", "bad", "better"], 1: ["fine"], 2: [], 3: []})
    run = scheduler.trigger("logged")
    assert scheduler.wait("logged", run) == "failed"

    code, out, err = call("logs", "logged")
    forgive.touch()
    scheduler.clear("logged", run, "plan_epoch")
    followed = call("logs", "logged", "--follow")

    assert (code, err) == (0, "epoch 1 of logged is ABORTED\n")
    assert heads(out) == ["==== plan_epoch try 1", "==== pre_commit try 1", "==== abort_epoch try 1"]
    assert "epoch 1 of logged is PLANNED (planned): logged-0[0, 3), logged-1[0, 1)" in out
    assert "INFO epochline.spark.job job.started pipeline=logged epoch=1 attempt=1" in out
    assert "AirflowFailException: BadRecordError: logged-0 offset 1: the record says that it is bad" in out
    assert "::group::" not in out
    assert followed[2] == "epoch 1 of logged is COMMITTED\n"
    assert scheduler.state("logged", run) == "success"
    lines = followed[1].splitlines()
    assert {"==== pre_commit try 1", "==== pre_commit try 2", "==== commit_epoch try 1"} <= set(heads(followed[1]))
    assert len([line for line in lines if "job.started" in line]) == 2, "a line is missing, or was printed twice"
    assert "is committed" in followed[1]


PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SECTION = re.search(r"^## Airflow's own commands$.*?^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = SECTION[1].splitlines() if SECTION else []
SHOWN = {
    "dags list": "access_log",
    "connections get epochline_kafka -o json": '"conn_type": "kafka"',
    "-- --help": "Usage: airflow",
}


def run(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the page in a shell that knows another Airflow."""
    program, *arguments = shlex.split(command)
    assert program == "epochline"
    environment = {**os.environ, "EPOCHLINE_HOME": str(home), "AIRFLOW_HOME": "/nowhere", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", "from epochline.cli import main; main()", *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_page_shows_the_commands_that_are_tested() -> None:
    assert [command.removeprefix("epochline airflow ") for command in COMMANDS] == list(SHOWN)


@pytest.mark.parametrize("command", COMMANDS)
def test_airflows_own_program_talks_to_the_stacks_airflow(scheduler: Scheduler, command: str) -> None:
    done = run(command, scheduler.stack.home.root)

    assert done.returncode == 0, done.stderr
    assert SHOWN[command.removeprefix("epochline airflow ")] in done.stdout
    assert credentials.require(scheduler.stack.home).epochline not in done.stdout + done.stderr


def test_airflows_exit_code_is_passed_on(scheduler: Scheduler) -> None:
    assert run("epochline airflow dags no-such-command", scheduler.stack.home.root).returncode == 2


def test_without_a_stack_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    done = run("epochline airflow dags list", tmp_path / "nothing")

    assert (done.returncode, done.stdout) == (1, "")
    assert "run `epochline up`" in done.stderr
    assert not (tmp_path / "nothing").exists()


ROOT = Path(__file__).parents[2]


def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[AirflowPlugin]]:
    """What Airflow would load from `plugins/` where the package is not installed, from the classes themselves."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        for kind in runpy.run_path(str(path)).values():
            if isinstance(kind, type) and issubclass(kind, AirflowPlugin) and kind is not AirflowPlugin:
                yield kind


GUARDS = ("airflow.api_fastapi.core_api.security.requires_access", "epochline.airflow.pages.scraping._scraper")
"""How the names of dependencies begin that refuse the anonymous. The second one also takes Prometheus' token, as
tests/airflow/test_metrics.py tries."""


def open_routes(app: Any) -> Iterator[str]:
    """Routes that anybody could call: without a dependency of `GUARDS`."""
    for route in app.routes:
        if isinstance(route, Mount):
            yield from (f"{route.path}{inner}" for inner in open_routes(route))
        elif not (isinstance(route, APIRoute) and _guarded(route.dependant)):
            yield route.path


def _guarded(dependant: Any) -> bool:
    for one in dependant.dependencies:
        name = f"{getattr(one.call, '__module__', '')}.{getattr(one.call, '__qualname__', '')}"
        if name.startswith(GUARDS) or _guarded(one):
            return True
    return False


def test_no_plugin_of_the_project_opens_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-3: Airflow does not authenticate the apps of plugins; each route has to ask by itself."""
    found = list(plugins(monkeypatch))
    assert found == [EpochlinePlugin]
    for kind in found:
        for app in kind.fastapi_apps:
            assert list(open_routes(app["app"].app)) == [], kind
        assert not kind.flask_blueprints, kind
        assert not kind.appbuilder_views, kind


@pytest.mark.filterwarnings("ignore:Using `httpx` with")  # Airflow's own import
def test_the_search_finds_an_open_route_wherever_it_hides() -> None:
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view

    app, inner = FastAPI(docs_url=None, redoc_url=None, openapi_url=None), FastAPI()
    guard = Depends(requires_access_view(AccessView.PLUGINS))
    app.add_api_route("/closed", lambda: None, dependencies=[guard])
    app.add_api_route("/open", lambda: None)
    app.add_api_route("/other", lambda: None, dependencies=[Depends(lambda: None)])
    app.routes.append(Route("/plain", lambda request: None))
    inner.add_api_route("/deep", lambda: None)
    app.mount("/below", inner)

    found = set(open_routes(app))

    assert found >= {"/open", "/other", "/plain", "/below/deep"}
    assert "/closed" not in found


FLOOR = (3, 3, 0)
"""CVE-2026-33264, CVE-2026-42359, CVE-2025-68438 and CVE-2025-66388 are closed from here on."""


def test_airflow_is_of_a_version_without_the_known_leaks() -> None:
    """SEC-7: installed, pinned and in the image. The package takes the last patch of each minor alone."""
    needed = {one.name: one.specifier for one in map(Requirement, requires("epochline") or ())}

    assert version("apache-airflow") == locked("apache-airflow")
    assert tuple(map(int, locked("apache-airflow").split("."))) >= FLOOR
    known = ("3.1.8", "3.2.0", "3.2.1", "3.2.2", "3.3.0", "3.3.1", "3.3.2")
    assert [one for one in known if one in needed["apache-airflow"]] == ["3.2.2", "3.3.2"]
    assert "requirements.txt" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize(
    "note", ["{{ 7 * 7 }}", "{{ conn.x.password }} {{ var.value.y }}", "{% raw %}{{ 1 }}", "{# c #}"]
)
def test_a_template_in_the_note_of_a_trigger_is_not_rendered(note: str) -> None:
    """SEC-2: params fill templates, and what they hold is text from then on."""
    task = build_dag(orders()).get_task("plan_epoch")
    assert isinstance(task, PlanEpochOperator)

    task.render_template_fields({"params": {"note": note, "record_limit": 5}})

    assert (task.note, task.record_limit) == (note, "5")
