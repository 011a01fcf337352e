"""Operators' actions in a real Chromium: each is chosen, previewed, explained and confirmed by clicks, as each role."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from epochline.airflow.acts import ACTS
from tests.airflow import rest
from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.half_way import sealed_but_paused
from tests.airflow.page_requests import ask, token_of
from tests.browser import Visit, needs_browser, visit
from tests.integration.kafka_topics import delete_records, delete_topic
from tests.integration.sinks_world import seen, values

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser

REASON = "a browser wants to "
OFTEN = ("savepoint", "requeue", "pause", "resume", "abort", "restore")
RARELY = ("extend-back", "declare-loss", "retry")
LATE = ("publish",)
JUDGED = ("approve", "abort")
WRITTEN = "SELECT action, actor, reason FROM epochline.actions WHERE pipeline = %s ORDER BY action_id"


class Hand:
    """A user who acts on one pipeline from its tab in Airflow."""

    def __init__(self, seen: Visit, pipeline: str) -> None:
        self.seen = seen
        self.pipeline = pipeline
        self.done: list[str] = []

    def form(self, action: str, **fields: str) -> None:
        """Choose an action on the pipeline's page, and fill in its form."""
        self.seen.open(f"dags/{self.pipeline}/plugin/epochline_pipeline")
        self.seen.frame.locator(f"#act-{action}").click()
        for field, value in fields.items():
            box = self.seen.frame.locator(f"#field-{field}")
            box.check() if value == "true" else box.fill(value)
        if fields:
            # A link may have filled in the form, so the old page may show a preview as well: wait for the new one.
            with self.seen.page.expect_event("framenavigated"):
                self.seen.frame.get_by_role("button", name="Preview").click()

    def act(self, action: str, effect: str, **fields: str) -> None:
        """Read the preview as well, say why, confirm, and wait until the page says that the action is done."""
        self.form(action, **fields)
        assert effect in self.seen.frame.locator("#effect").inner_text()
        self.seen.frame.get_by_label("Reason").fill(f"{REASON}{action}")
        self.seen.frame.locator("#act").click()
        self.seen.frame.get_by_role("heading", name="Actions that these pages started").wait_for()
        eventually(f"{action} is done", lambda: self._is_done(action), every=0.5)
        self.done.append(action)

    def _is_done(self, action: str) -> bool:
        """Asked again at once, and not every ten seconds, as the page does by itself."""
        self.seen.open(f"epochline/pipelines/{self.pipeline}")
        row = self.seen.page.get_by_role("row").filter(has_text=f"{REASON}{action}")
        return row.get_by_text("done", exact=True).count() == 1


@contextmanager
def hand_of(user: str, scheduler: Scheduler, chromium: Browser, pipeline: str, *actions: str) -> Iterator[Hand]:
    """At the end, the actions are done, and the ledger has each with the user's name and the reason."""
    with visit(chromium, scheduler.stack.airflow.url, token_of(scheduler, user)) as seen:
        hand = Hand(seen, pipeline)
        yield hand
    assert tuple(hand.done) == actions
    assert scheduler.query(WRITTEN, pipeline) == [(one, user, f"{REASON}{one}") for one in actions]


def test_each_action_is_taken_to_its_effect_by_one_of_the_tests_below() -> None:
    assert {*OFTEN, *RARELY, *LATE, *JUDGED} == ACTS.keys()


def test_a_viewer_is_offered_no_action_and_refused_each(scheduler: Scheduler, chromium: Browser) -> None:
    """SEC-9: in the browser as on the wire."""
    scheduler.prepare("viewed", {0: ["good", "bad"]})
    assert scheduler.run("viewed")["run"] == "success"
    base = "epochline/pipelines/viewed"
    with visit(chromium, scheduler.stack.airflow.url, token_of(scheduler, "viewer")) as seen:
        seen.open(base)
        assert seen.page.get_by_role("link", name="Pause").count() == 0
        for page in (f"{base}/quarantine", f"{base}/epochs/1"):
            seen.open(page)
            assert "viewed/0/1" in seen.page.locator("main").inner_text()
            assert "the record says that it is bad" not in seen.page.locator("main").inner_text()
        for action in (*ACTS, "abort?epoch=2", "requeue?everything=true", "restore?name=before"):
            answer = seen.page.goto(f"{scheduler.stack.airflow.url}/{base}/act/{action}")
            assert answer is not None
            assert answer.status == 403, action
            seen.page.get_by_role("heading", name="Not allowed").wait_for()
        seen.errors.clear()  # Chromium reports each refusal


@pytest.mark.parametrize("user", ["grace", pytest.param("ada", marks=pytest.mark.slow)])
def test_an_operator_clicks_through_a_requeue_a_pause_an_abort_and_a_restore(
    scheduler: Scheduler, chromium: Browser, forgive: Path, user: str
) -> None:
    """INV-9: each with its preview and reason. Grace is a user of Airflow, Ada an operator."""
    pipeline = f"clicked_by_{user}"
    scheduler.prepare(pipeline, {0: ["good", "bad"], 1: ["fine"]})
    assert scheduler.run(pipeline)["run"] == "success"
    forgive.touch()
    with hand_of(user, scheduler, chromium, pipeline, *OFTEN) as hand:
        hand.act("savepoint", f"the newest committed epoch of {pipeline} is 1", name="before")
        hand.act("requeue", "1 records of")
        eventually("the requeue is committed", lambda: scheduler.epoch(pipeline, 2)[0] == "COMMITTED")
        requeues = scheduler.call("GET", "/api/v2/dags/epochline_requeue/dagRuns?order_by=-id&limit=1")["dag_runs"]
        links = scheduler.links("epochline_requeue", requeues[0]["dag_run_id"], "act")
        assert links == {"Pipeline": f"dags/{pipeline}/plugin/epochline_pipeline"}
        hand.act("pause", "no epoch of")
        hand.act("resume", "plan")
        scheduler.produce(pipeline, {0: ["later"], 1: ["later"]})
        run = sealed_but_paused(scheduler, pipeline, 3)
        hand.act("abort", "sealed rows", epoch="3")
        assert scheduler.epoch(pipeline, 3)[0] == "ABORTED"
        scheduler.pause(pipeline, False)
        assert scheduler.wait(pipeline, run) == "failed"
        hand.act("restore", "goes back to where epoch 1 of", name="before")
        assert scheduler.query(f"SELECT count(*) FROM {pipeline}") == [(2,)]


@pytest.mark.slow
def test_an_operator_clicks_through_a_loss_a_retry_and_older_records(scheduler: Scheduler, chromium: Browser) -> None:
    """S9, S10: declare loss, retry and extend back; publish again is not offered while every sink shows every epoch."""
    pipeline = "clicked_rarely"
    scheduler.prepare(pipeline, {0: ["older"], 1: ["older"]})
    assert scheduler.run(pipeline)["plan_epoch"] == "skipped"  # it begins with the latest
    scheduler.produce(pipeline, {0: ["first"]})
    assert scheduler.run(pipeline)["run"] == "success"
    with hand_of("ada", scheduler, chromium, pipeline, *RARELY) as hand:
        hand.seen.open(f"epochline/pipelines/{pipeline}")
        hand.seen.page.locator("#act-extend-back").wait_for()
        assert hand.seen.page.locator("#act-publish, #act-declare-loss, #act-resume").count() == 0

        hand.act("extend-back", "offsets [0, 1) are committed", to="earliest")
        # An epoch takes one record, so two runs take what lay before.
        eventually("it is committed", lambda: scheduler.query(f"SELECT count(*) FROM {pipeline}") == [(3,)])
        assert scheduler.committed(pipeline) == 3
        origin = "SELECT DISTINCT origin_offset FROM epochline.heads WHERE pipeline = %s AND partition < 2"
        assert scheduler.query(origin, pipeline) == [(0,)]

        scheduler.produce(pipeline, {0: ["lost", "kept"]})
        delete_records(scheduler.stack.kafka.bootstrap_servers, pipeline, {0: 3})
        assert scheduler.run(pipeline)["run"] == "failed"
        hand.seen.open(f"epochline/pipelines/{pipeline}")
        hand.seen.page.get_by_text("unread records deleted").first.wait_for()
        hand.act("declare-loss", "offsets [2, 3), 1 of them, are declared lost")
        hand.act("retry", "")
        eventually("it is committed", lambda: scheduler.query(f"SELECT count(*) FROM {pipeline}") == [(4,)])


@pytest.mark.slow
def test_an_operator_publishes_again_what_a_topic_that_was_away_does_not_show(
    scheduler: Scheduler, chromium: Browser
) -> None:
    """Publish again: the topic is deleted between the seal and the commit, and made again before the click."""
    pipeline, servers = "clicked_late", scheduler.stack.kafka.bootstrap_servers
    scheduler.prepare(pipeline, {0: ["a", "b"], 1: ["c"]})
    scheduler.produce("clicked_out", {})
    run = sealed_but_paused(scheduler, pipeline, 1)
    delete_topic(servers, "clicked_out")
    scheduler.pause(pipeline, False)
    ended = ("up_for_retry", "failed")
    eventually("the publication failed", lambda: scheduler.tasks(pipeline, run)["publish"] in ended)
    scheduler.pause(pipeline, True)  # Its own next try would publish before the click.
    scheduler.produce("clicked_out", {})
    with hand_of("ada", scheduler, chromium, pipeline, *LATE) as hand:
        hand.seen.open(f"epochline/pipelines/{pipeline}")
        hand.seen.page.get_by_text("not shown everywhere").wait_for()
        hand.act("publish", "kafka:clicked_out: 1 committed epoch to show")
        hand.seen.open(f"epochline/pipelines/{pipeline}")
        assert hand.seen.page.get_by_text("not shown everywhere").count() == 0
    assert sorted(map(str, values(seen(servers, "clicked_out")))) == ["a", "b", "c"]
    scheduler.pause(pipeline, False)


@pytest.mark.slow
def test_an_epoch_outside_its_bounds_is_approved_and_aborted_by_clicks_and_by_nobody_without_the_right(
    scheduler: Scheduler, chromium: Browser
) -> None:
    """U10, SEC-9, SEC-10: on the pages, and in Airflow's own page; the ledger says who, and why."""
    pipeline, task = "clicked_outside", "approve_epoch"
    outside = "6 rows staged, at most 4 expected"
    approve = f"/pipelines/{pipeline}/act/approve"
    scheduler.prepare(pipeline, {0: ["a", "b", "c"], 1: [], 2: [], 3: []})

    def waits() -> str:
        run = scheduler.trigger(pipeline)
        eventually("the epoch waits", lambda: scheduler.tasks(pipeline, run)[task] == "deferred", every=0.5)
        return run

    run = waits()
    viewer, grace = token_of(scheduler, "viewer"), token_of(scheduler, "grace")
    with visit(chromium, scheduler.stack.airflow.url, viewer) as seen:
        for page in (f"epochline/pipelines/{pipeline}", f"epochline/pipelines/{pipeline}/epochs/1"):
            seen.open(page)
            assert outside in seen.page.locator("main").inner_text()
            assert seen.page.locator("#act-approve, #act-abort").count() == 0
    form = {"token": ask(scheduler, f"{approve}?epoch=1", grace).token, "reason": "why"}
    refused = [
        ask(scheduler, approve, user, form=form, **headers).status
        for user, headers in ((viewer, {}), (None, {}), (token_of(scheduler, "ada"), {}), (grace, {"Origin": "null"}))
    ]
    assert refused == [403, 401, 403, 403]
    question = f"/api/v2/dags/{pipeline}/dagRuns/{run}/taskInstances/{task}/-1/hitlDetails"
    with pytest.raises(AssertionError, match=": 403 "):
        rest.call(scheduler.stack.airflow, viewer, "PATCH", question, {"chosen_options": ["Approve"]})
    with hand_of("grace", scheduler, chromium, pipeline, *JUDGED) as hand:
        hand.act("approve", f"is outside its bounds: {outside}")
        assert scheduler.wait(pipeline, run) == "success"
        scheduler.produce(pipeline, {1: ["d", "e", "f"]})
        run = waits()
        hand.act("abort", "sealed rows")
        assert scheduler.wait(pipeline, run) == "failed"
        assert scheduler.tasks(pipeline, run)["commit_epoch"] == "upstream_failed"
        hand.seen.open(f"epochline/pipelines/{pipeline}/epochs/2")
        told = hand.seen.page.locator("main").inner_text()
        assert (outside in told, "not approved" in told, "awaited" in told) == (True, True, False)
    run = waits()
    with visit(chromium, scheduler.stack.airflow.url, grace) as seen:
        seen.open(f"dags/{pipeline}/runs/{quote(run, safe='')}/tasks/{task}/required_actions")
        seen.page.locator("#element_reason").fill("Airflow asked")  # its label names no input
        seen.page.get_by_role("button", name="Approve", exact=True).click()
        assert scheduler.wait(pipeline, run) == "success"

    asked = (
        "SELECT state, approval, decided_by, decided_reason FROM epochline.epochs WHERE pipeline = %s ORDER BY epoch_id"
    )
    assert scheduler.query(asked, pipeline) == [
        ("COMMITTED", "approved", "grace", f"{REASON}approve"),
        ("ABORTED", "awaited", None, None),
        ("COMMITTED", "approved", "grace", "Airflow asked"),
    ]
    scheduler.assert_exact(pipeline, {0: ["a", "b", "c"], 1: ["d", "e", "f"], 2: [], 3: []})
