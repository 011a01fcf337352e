"""Operators' actions from the pages: who may, what is refused, and each is done once (SEC-10)."""

import json
import time
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from itsdangerous import TimestampSigner, URLSafeTimedSerializer

from epochline.airflow.pages.app import HEADERS
from epochline.airflow.pages.runs import VALID_SECONDS
from tests.airflow.conftest import Scheduler
from tests.airflow.page_requests import ask, token_of
from tests.elements import Elements

PIPELINE = "acted_on_pages"
PAUSE, ABORT = (f"/pipelines/{PIPELINE}/act/{one}" for one in ("pause", "abort"))
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def grace(scheduler: Scheduler) -> str:
    return token_of(scheduler, "grace")


@pytest.fixture
def known(scheduler: Scheduler) -> Iterator[Scheduler]:
    """A pipeline with an aborted epoch in the ledger that no DAG file declares: its actions start runs that fail."""
    scheduler.query(
        f"""
        INSERT INTO epochline.pipeline (pipeline, last_epoch_id) VALUES ('{PIPELINE}', 1) ON CONFLICT DO NOTHING;
        INSERT INTO epochline.declaration (hash, pipeline, body) VALUES ('{PIPELINE}', '{PIPELINE}', '{{}}')
        ON CONFLICT DO NOTHING;
        INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, attempt, dag_id, run_id, host,
                                     declaration_hash, lease_until, aborted_at, aborts)
        VALUES ('{PIPELINE}', 1, 1, 'ABORTED', 1, '{PIPELINE}', 'run', 'host', '{PIPELINE}', now(), now(), 1)
        ON CONFLICT DO NOTHING
        """
    )
    yield scheduler
    assert scheduler.query("SELECT * FROM epochline.action WHERE pipeline = %s", PIPELINE) == []


def started(scheduler: Scheduler, dag: str) -> list[str]:
    runs = scheduler.call("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=-id&limit=100")["dag_runs"]
    return [one["dag_run_id"] for one in runs if one["dag_run_id"].startswith(f"page:{PIPELINE}:")]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Origin": "http://evil.example"}, "another origin"),
        ({"Origin": "null"}, "another origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "another origin"),
        ({"Sec-Fetch-Site": "same-site"}, "another origin"),
        ({"Origin": ""}, "another origin"),
    ],
)
def test_a_form_of_another_origin_starts_nothing(
    known: Scheduler, grace: str, headers: dict[str, str], said: str
) -> None:
    token = ask(known, PAUSE, grace).token

    answer = ask(known, PAUSE, grace, form={"token": token, "reason": "why"}, **headers)

    assert (answer.status, said in answer.text) == (403, True)
    assert started(known, "epochline_pause") == []


def test_a_token_that_is_forged_or_of_another_user_action_or_pipeline_starts_nothing(
    known: Scheduler, grace: str
) -> None:
    token = ask(known, PAUSE, grace).token
    assert token
    body, _, _ = token.rpartition(".")
    abort = ask(known, f"{ABORT}?epoch=1", grace).token
    for user, path, sent in (
        (grace, PAUSE, "x"),
        (grace, PAUSE, f"{body}.AAAA"),
        (grace, PAUSE, abort),
        (grace, "/pipelines/other/act/pause", token),
        (token_of(known, "ada"), PAUSE, token),
    ):
        assert ask(known, path, user, form={"token": sent, "reason": "why"}).status == 403
    for other, status in ((token_of(known, "viewer"), 403), (None, 401), ("no.such.token", 403)):
        assert ask(known, PAUSE, other, form={"token": token, "reason": "why"}).status == status
    assert started(known, "epochline_pause") == started(known, "epochline_abort") == []


def test_a_preview_that_is_old_or_of_another_state_is_refused_with_a_fresh_one(known: Scheduler, grace: str) -> None:
    path = f"{ABORT}?epoch=1"
    token = ask(known, path, grace).token
    known.query("UPDATE epochline.epoch SET attempt = attempt + 1 WHERE pipeline = %s RETURNING 1", PIPELINE)

    stale = ask(known, ABORT, grace, form={"token": token, "reason": MARKUP})

    assert (stale.status, "The state has changed since the preview" in stale.text) == (409, True)
    assert stale.token not in ("", token)
    assert "&lt;script&gt;alert(1)" in stale.text  # what was typed is not lost
    secret = json.loads(known.stack.home.secrets.read_text())["airflow_api_secret_key"]
    old = _Old(secret, salt="epochline.act", signer=_LongAgo)
    claim = old.loads(stale.token)
    answer = ask(known, ABORT, grace, form={"token": old.dumps(claim), "reason": "why"})
    assert (answer.status, "older than 15 minutes" in answer.text) == (409, True)
    assert ask(known, ABORT, grace, form={"token": stale.token, "reason": " "}).status == 409
    assert started(known, "epochline_abort") == []


class _LongAgo(TimestampSigner):
    def get_timestamp(self) -> int:
        return int(time.time()) - VALID_SECONDS - 5


_Old = URLSafeTimedSerializer


def test_a_form_that_is_sent_twice_starts_one_run_and_the_page_says_what_came_of_it(
    known: Scheduler, grace: str
) -> None:
    token = ask(known, PAUSE, grace).token
    form = {"token": token, "reason": MARKUP}

    first, second = ask(known, PAUSE, grace, form=form), ask(known, PAUSE, grace, form=form)

    assert (first.status, first.headers["location"]) == (303, f"../../{PIPELINE}#started")
    assert (second.status, "This form was sent before" in second.text) == (409, True)
    [run] = started(known, "epochline_pause")
    assert known.wait("epochline_pause", run) == "failed"  # nothing declares the pipeline
    for one in (first, second):
        assert one.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    viewed = ask(known, f"/pipelines/{PIPELINE}", token_of(known, "viewer")).text
    assert ("refused or failed" in viewed, "declares a pipeline" in viewed) == (True, False)
    page = ask(known, f"/pipelines/{PIPELINE}", grace).text
    for said in ("refused or failed", "grace", "&lt;script&gt;alert(1)", PIPELINE):
        assert said in page
    assert "declares a pipeline" in page
    assert_harmless(page)


def test_an_action_whose_dag_is_paused_is_not_offered(known: Scheduler, grace: str) -> None:
    token = ask(known, PAUSE, grace).token
    known.pause("epochline_pause", True)
    try:
        answer = ask(known, PAUSE, grace)
        sent = ask(known, PAUSE, grace, form={"token": token, "reason": "why"})
    finally:
        known.pause("epochline_pause", False)
    assert (answer.token, "The DAG epochline_pause is paused in Airflow" in answer.text) == ("", True)
    assert sent.status == 409
    # A retry also needs the pipeline's own DAG.
    assert f"Airflow has no DAG {PIPELINE}." in ask(known, f"/pipelines/{PIPELINE}/act/retry", grace).text


@pytest.mark.parametrize("epoch", ["0", "x", MARKUP])
def test_a_parameter_that_is_wrong_is_refused_and_its_form_stays(known: Scheduler, grace: str, epoch: str) -> None:
    answer = ask(known, f"{ABORT}?{urlencode({'epoch': epoch})}", grace)

    assert (answer.status, answer.token) == (422, "")
    assert 'id="problem"' in answer.text
    assert_harmless(answer.text)


def test_markup_in_a_record_its_headers_an_error_a_note_and_a_reason_is_text_on_every_page(
    known: Scheduler, grace: str
) -> None:
    """SEC-9: what a producer, a program and an operator wrote is hostile."""
    quoted = "'" + MARKUP.replace("'", "''") + "'"
    header = json.dumps([[MARKUP, "PHNjcmlwdD4="]]).replace("'", "''")
    known.query(
        f"""
        UPDATE epochline.epoch SET error = {quoted}, note = {quoted} WHERE pipeline = '{PIPELINE}';
        INSERT INTO epochline.quarantined_record (pipeline, generation, epoch_id, topic, topic_id, partition, "offset",
                                                  key, value, headers, reason)
        VALUES ('{PIPELINE}', 1, 1, {quoted}, 'x', 0, 7, {quoted}::text::bytea, {quoted}::text::bytea, '{header}', {quoted})
        ON CONFLICT DO NOTHING
        """.replace("%", "%%")
    )
    base = f"/pipelines/{PIPELINE}"
    record = urlencode({"epoch": 1, "topic": MARKUP, "partition": 0, "offset": 7})
    for path, shown in (
        (f"{base}/epochs/1", True), (f"{base}/quarantine", True), (f"{base}/quarantine/record?{record}", True),
        (f"{base}/act/requeue?{urlencode({'topic': MARKUP})}", True),
        (f"{base}/act/requeue?{urlencode({'like': MARKUP})}", True),
        (f"{base}/act/savepoint?{urlencode({'name': MARKUP})}", True),
        (f"{base}/act/{urlencode({'x': MARKUP})}", False),
    ):  # fmt: skip
        answer = ask(known, path, grace)
        assert ("&lt;script&gt;alert(1)" in answer.text) is shown, path
        assert_harmless(answer.text)


def assert_harmless(text: str) -> None:
    elements = Elements(text).found
    assert elements
    assert [one.get("src", "")[-8:] for tag, one in elements if tag == "script"] == ["pages.js"]  # type: ignore[index]
    assert [tag for tag, _ in elements if tag in ("img", "iframe", "object", "style")] == []
    assert [key for _, one in elements for key in one if key.startswith("on") or key == "style"] == []
