"""Who sees the pages in Airflow: every route of the real API server, as nobody, a viewer and an operator (SEC-3)."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy.engine import make_url

from epochline.airflow.pages.app import HEADERS, create_app
from epochline.airflow.pages.plugin import VIEWS
from tests.airflow.conftest import Scheduler
from tests.airflow.page_requests import ask, token_of
from tests.conftest import AIRFLOW_DAGS
from tests.databases import query
from tests.declared import find_all

PIPELINE, RUN = "shown_in_pages", "manual__2026-11-24T12:00:00.123456+00:00"
VALUES = {
    "dag_id": PIPELINE,
    "epoch_id": "1",
    "run_id": quote(RUN, safe=""),
    "name": "pages.css",
    "path": "no/such/page",
    "action": "pause",
}
RECORD = "?epoch=1&topic=shown&partition=0&offset=7"


@pytest.fixture(scope="module")
def shown(scheduler: Scheduler) -> Scheduler:
    scheduler.query(
        f"""
        INSERT INTO epochline.pipeline (pipeline, last_epoch_id) VALUES ('{PIPELINE}', 1) ON CONFLICT DO NOTHING;
        INSERT INTO epochline.declaration (hash, pipeline, body) VALUES ('{PIPELINE}', '{PIPELINE}', '{{}}')
        ON CONFLICT DO NOTHING;
        INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, attempt, dag_id, run_id, host,
                                     declaration_hash, lease_until, aborted_at, aborts, error)
        VALUES ('{PIPELINE}', 1, 1, 'ABORTED', 1, '{PIPELINE}', '{RUN}', 'host', '{PIPELINE}', now(), now(), 1, 'why it failed')
        ON CONFLICT DO NOTHING;
        INSERT INTO epochline.quarantined_record (pipeline, generation, epoch_id, topic, topic_id, partition, "offset",
                                                  value, reason)
        VALUES ('{PIPELINE}', 1, 1, 'shown', 'shown', 0, 7, 'the bytes', 'the reason') ON CONFLICT DO NOTHING;
        INSERT INTO epochline.refused_row (pipeline, epoch_id, attempt, generation, sink, "row", reason)
        VALUES ('{PIPELINE}', 1, 1, 1, 'totals', '{{"k": "the bytes of a sum"}}', 'the reason of a rule')
        """
    )
    return scheduler


@pytest.fixture(scope="module")
def viewer(shown: Scheduler) -> str:
    return token_of(shown, "viewer")


@pytest.fixture(scope="module")
def operator(shown: Scheduler) -> str:
    return token_of(shown, "grace")


def paths() -> Iterator[str]:
    for route in create_app().routes:
        path = route.path.replace(":path}", "}").format_map(VALUES)  # type: ignore[attr-defined]
        yield path + (RECORD if path.endswith("/record") else "")


def acting(paths: Iterable[str]) -> set[str]:
    """Those of the paths that only users who may edit the DAG's runs may ask."""
    return {path for path in paths if "/act/" in path or "/record?" in path or path.endswith("/why")}


def test_every_route_refuses_the_anonymous_and_says_nothing_of_the_ledger(shown: Scheduler) -> None:
    """Also one that does not exist, and one of a token that nobody signed."""
    walked = [*paths(), "/docs", "/redoc", "/openapi.json", "/pipelines/", "/static/../app.py"]
    assert len(walked) > 12

    for path in walked:
        answer = ask(shown, path)
        assert answer.status == 401, path
        assert re.findall("why it failed|the bytes|the reason", answer.text) == []
        assert ask(shown, path, form={"token": "x", "reason": "y"}).status == 401 or "/act/" not in path, path
        assert ask(shown, path, "not.a.token").status in (401, 403), path


def test_a_viewer_reads_every_page_and_its_json(shown: Scheduler, viewer: str) -> None:
    answers = {path: ask(shown, path, viewer) for path in paths()}

    refused = acting(answers)
    assert len(refused) == 3
    assert {path: one.status for path, one in answers.items() if one.status != 200} == {
        "/no/such/page": 404, **dict.fromkeys(refused, 403),
    }  # fmt: skip
    for path, one in answers.items():
        assert "the bytes" not in one.text, path
        assert "the reason" not in one.text, path
        assert "/act/" not in one.text, path
    assert "shown/0/7" in answers[f"/pipelines/{PIPELINE}/quarantine"].text
    for path in (
        f"/pipelines/{PIPELINE}",
        f"/pipelines/{PIPELINE}/epochs/1",
        f"/pipelines/{PIPELINE}/runs/{VALUES['run_id']}",
    ):
        assert "why it failed" in answers[path].text, path
    assert PIPELINE in answers["/"].text
    listed = {one["pipeline"] for one in json.loads(answers["/api/pipelines"].text)["pipelines"]}
    declared = {*find_all(AIRFLOW_DAGS)}
    assert (declared - listed, {"epochline_pause", "epochline_log_ends"} & listed) == (set(), set())
    never_ran = min(declared - {name for (name,) in shown.query("SELECT pipeline FROM epochline.standings")})
    of_one = ask(shown, f"/pipelines/{never_ran}", viewer)
    assert (of_one.status, "not started" in of_one.text) == (200, True)
    history: list[dict[str, Any]] = json.loads(answers[f"/api/pipelines/{PIPELINE}"].text)["history"]
    assert [(one["epoch_id"], one["run_id"]) for one in history] == [(1, RUN)]


def test_an_operator_also_sees_the_actions_and_the_bytes_in_the_quarantine(shown: Scheduler, operator: str) -> None:
    answers = {path: ask(shown, path, operator) for path in paths()}

    assert {path for path, one in answers.items() if one.status != 200} == {"/no/such/page"}
    listed, record = (answers[f"/pipelines/{PIPELINE}/quarantine{path}"].text for path in ("", f"/record{RECORD}"))
    for text in (listed, record):
        assert {"the bytes", "the reason"} <= {*re.findall("the bytes|the reason", text)}
    assert "74 68 65 20 62 79 74 65 73" in record
    assert "the bytes" in answers[f"/pipelines/{PIPELINE}/epochs/1"].text
    assert "the bytes" not in answers[f"/api/pipelines/{PIPELINE}/quarantine"].text
    assert "the bytes" not in answers[f"/api/pipelines/{PIPELINE}/epochs/1"].text
    offered = re.findall('<a [^>]*id="act-([a-z-]+)"', answers[f"/pipelines/{PIPELINE}"].text)
    assert offered == ["retry", "pause", "requeue"], "those of a pipeline whose only epoch is aborted"
    assert {"the bytes of a sum", "the reason of a rule"} <= {
        *re.findall("the bytes of a sum|the reason of a rule", answers[f"/pipelines/{PIPELINE}/quarantine"].text)
    }
    reason = ask(shown, f"/pipelines/{PIPELINE}/quarantine?reason=%25reason", operator)
    assert ("shown/0/7" in reason.text, reason.status) == (True, 200)
    other = ask(shown, f"/pipelines/{PIPELINE}/quarantine?reason=other%25", operator)
    assert ("No record in the quarantine fits" in other.text, other.status) == (True, 200)


def test_a_viewer_learns_nothing_of_a_reason_by_filtering(shown: Scheduler, viewer: str) -> None:
    answers = {
        ask(shown, f"/pipelines/{PIPELINE}/quarantine?reason={one}", viewer).text.count("shown/0/7") for one in "xy"
    }
    assert answers == {1}


def test_the_cookie_of_the_user_interface_is_enough(shown: Scheduler, viewer: str) -> None:
    """What a browser sends from the frame."""
    assert ask(shown, "/", Cookie=f"_token={viewer}").status == 200


def test_no_route_but_that_of_an_action_takes_anything_but_a_question(
    shown: Scheduler, viewer: str, operator: str
) -> None:
    for path in paths():
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for token in (viewer, operator):
                acts = method == "POST" and "/act/" in path
                assert ask(shown, path, token, method).status == (403 if acts else 405), (method, path)


def test_every_answer_forbids_foreign_code_and_foreign_frames(shown: Scheduler, viewer: str) -> None:
    for path in paths():
        for token in (viewer, None):
            answer = ask(shown, path, token)
            assert {name: answer.headers.get(name.lower()) for name in HEADERS} == HEADERS, path


@pytest.mark.parametrize(
    "path",
    [
        "?before=0",
        "?before=x",
        "?size=201",
        "?state=EVIL",
        "?kind=EVIL",
        "?since=yesterday",
        "?evil=1",
        "/quarantine?size=201",
        "/quarantine?evil=1",
        "/quarantine?after_topic=%00",
        "/quarantine?reason=%00",
    ],
)
def test_a_question_out_of_bounds_is_refused(shown: Scheduler, viewer: str, path: str) -> None:
    assert ask(shown, f"/api/pipelines/{PIPELINE}{path}", viewer).status == 422


def test_what_the_ledger_does_not_know_is_not_found(shown: Scheduler, viewer: str) -> None:
    for path in ("/pipelines/none", f"/pipelines/{PIPELINE}/epochs/2", "/api/pipelines/none", "/static/app.py"):
        assert ask(shown, path, viewer).status == 404, path
    no_epoch = ask(shown, f"/pipelines/{PIPELINE}/runs/other", viewer)
    assert (no_epoch.status, "no epoch of its own" in no_epoch.text) == (200, True)


def test_a_ledger_that_the_pages_may_not_read_is_named_with_the_statement_that_mends_it(
    shown: Scheduler, viewer: str
) -> None:
    admin = make_url(shown.stack.postgres.superuser_dsn).set(database="epochline").render_as_string(False)
    query(admin, "REVOKE epochline_reader FROM epochline_viewer")
    try:
        for path in ("/", f"/pipelines/{PIPELINE}", "/api/pipelines"):
            answer = ask(shown, path, viewer)
            assert (answer.status, "GRANT epochline_reader TO epochline_viewer" in answer.text) == (503, True), path
    finally:
        query(admin, "GRANT epochline_reader TO epochline_viewer")
    assert ask(shown, "/", viewer).status == 200


def test_airflow_shows_the_pages_in_its_navigation_and_at_each_dag_and_run(shown: Scheduler) -> None:
    [plugin] = [one for one in shown.call("GET", "/api/v2/plugins")["plugins"] if one["name"] == "epochline"]

    assert {one["destination"]: one["href"] for one in plugin["external_views"]} == {
        str(one["destination"]): one["href"] for one in VIEWS
    }
    assert shown.call("GET", "/api/v2/plugins/importErrors")["import_errors"] == []
