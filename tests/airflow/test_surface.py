"""What the project adds to Airflow's and Spark's surface: no open route, no Connect server, no old Airflow."""

import re
import runpy
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from airflow.plugins_manager import AirflowPlugin
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Mount, Route

from epochline.airflow.dag import build_dag
from epochline.airflow.operators import PlanEpochOperator
from tests.contract.worlds import orders

ROOT = Path(__file__).parents[2]


def plugins() -> Iterator[type[AirflowPlugin]]:
    """What Airflow would load from `plugins/`, from the classes themselves."""
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        for kind in runpy.run_path(str(path)).values():
            if isinstance(kind, type) and issubclass(kind, AirflowPlugin) and kind is not AirflowPlugin:
                yield kind


def open_routes(app: Any) -> Iterator[str]:
    """Routes that anybody could call: without a dependency of Airflow's own access control."""
    for route in app.routes:
        if isinstance(route, Mount):
            yield from (f"{route.path}{inner}" for inner in open_routes(route))
        elif not (isinstance(route, APIRoute) and _guarded(route.dependant)):
            yield route.path


def _guarded(dependant: Any) -> bool:
    for one in dependant.dependencies:
        name = f"{getattr(one.call, '__module__', '')}.{getattr(one.call, '__qualname__', '')}"
        if name.startswith("airflow.api_fastapi.core_api.security.requires_access") or _guarded(one):
            return True
    return False


def test_no_plugin_of_the_project_opens_a_route() -> None:
    """SEC-3: Airflow does not authenticate the apps of plugins; each route has to ask by itself."""
    for kind in plugins():
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
    """SEC-7: installed, declared and in the image."""
    [declared] = re.findall(r'"apache-airflow==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    [pinned] = re.findall(r"^apache-airflow==([\d.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)

    assert version("apache-airflow") == declared == pinned
    assert tuple(map(int, declared.split("."))) >= FLOOR
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
