"""The ledger's pages in a real Chromium: what every user sees of them, and how the pages behave around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from epochline.airflow.acts import ACTS
from tests.airflow.conftest import Scheduler, eventually
from tests.browser import NARROW, WIDE, Theme, needs_browser, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = needs_browser

PIPELINE = "watched"
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
PAGES = (
    "", f"pipelines/{PIPELINE}", f"pipelines/{PIPELINE}?state=ABORTED", f"pipelines/{PIPELINE}/epochs/1", "api",
    f"pipelines/{PIPELINE}/quarantine",
    f"pipelines/{PIPELINE}/quarantine/record?epoch=1&topic={PIPELINE}&partition=0&offset=1",
    f"pipelines/{PIPELINE}/act/abort?epoch=1", f"pipelines/{PIPELINE}/act/requeue?everything=true",
    f"pipelines/{PIPELINE}/act/savepoint",
)  # fmt: skip
FORMS = tuple(f"pipelines/{PIPELINE}/act/{name}" for name in ACTS)


@pytest.fixture(scope="module")
def watched(scheduler: Scheduler) -> Scheduler:
    """A pipeline with one committed epoch, one of whose records is in quarantine."""
    scheduler.prepare(PIPELINE, {0: ["first", "bad", HOSTILE], 1: ["second"]})
    assert scheduler.run(PIPELINE)["run"] == "success"
    return scheduler


@pytest.fixture(scope="module")
def failing(watched: Scheduler) -> Scheduler:
    """A pipeline with 60 epochs, of which the newest two were aborted, and with long names, numbers and errors."""
    watched.query(
        """
        INSERT INTO epochline.pipeline (pipeline, last_epoch_id) VALUES ('failing', 60);
        INSERT INTO epochline.declaration (hash, pipeline, body) VALUES ('failing', 'failing', '{}');
        INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, attempt, dag_id, run_id, host, declaration_hash,
            lease_until, planned_at, pre_committed_at, committed_at, records_read, records_passed, records_skipped,
            records_quarantined, rows_written)
        SELECT 'failing', n, 1, 'COMMITTED', 1, 'failing', 'scheduled__2026-11-24T12:00:00.' || 100000 + n || '+00:00',
            'worker', 'failing', now(), t, t, t + interval '50 s', 123456789, 123456789, 0, 0, 123456789
        FROM generate_series(1, 58) n, LATERAL (SELECT now() - (70 - n) * interval '10 min') x (t);
        INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, attempt, dag_id, run_id, host, declaration_hash,
            lease_until, aborted_at, aborts, error)
        SELECT 'failing', n, 1, 'ABORTED', 20, 'failing', 'run-' || n, 'worker', 'failing', now(), now(), 3,
            'ValueError: ' || repeat('no such column ', 250) FROM generate_series(59, 60) n;
        INSERT INTO epochline.planned_range (pipeline, epoch_id, topic, topic_id, partition, start_offset, until_offset,
            last_stable)
        SELECT 'failing', e, 'shop.eu-central-1.orders.v12', 'f', p, 9876543210 + e * 10, 9876543220 + e * 10,
            9876543230 + e * 11 FROM generate_series(1, 60) e, generate_series(0, 3) p;
        INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, until_offset, chosen_by)
        SELECT 'failing', 1, 'shop.eu-central-1.orders.v12', 'f', p, 9876543220, 'earliest' FROM generate_series(0, 3) p;
        INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset,
            until_offset, epoch_id, chosen_by)
        SELECT pipeline, 1, topic, topic_id, partition, start_offset, until_offset, epoch_id, 'epoch'
        FROM epochline.planned_range WHERE pipeline = 'failing' AND epoch_id < 59 ORDER BY epoch_id;
        INSERT INTO epochline.log_end (pipeline, topic, topic_id, partition, log_start, last_stable)
        SELECT 'failing', 'shop.eu-central-1.orders.v12', 'f', p, 1234567890, 9999999999 FROM generate_series(0, 3) p;
        INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host, failed_at, fenced_at, ended_at,
            error, error_class)
        SELECT 'failing', 60, n, 'failing', 'run-60', 'worker', now(), now(), now(),
            'ValueError: ' || repeat('no such column ', 250), 'ValueError' FROM generate_series(1, 20) n;
        INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host, sealed_at, ended_at)
        SELECT 'failing', n, 1, 'failing', 'run', 'worker', now(), now() FROM generate_series(1, 58) n;
        INSERT INTO epochline.receipt (pipeline, epoch_id, sink, attempt_id, rows, due_at)
        SELECT pipeline, epoch_id, 'kafka:shop.eu-central-1.orders_checked.v12', attempt_id, 123456789, now()
        FROM epochline.attempt WHERE pipeline = 'failing' AND epoch_id < 59;
        INSERT INTO epochline.action (pipeline, action, epoch_id, actor, reason, before, after)
        SELECT 'failing', 'retry', 59, 'grace', 'the target was away', '{}', '{}' FROM generate_series(1, 20)
        """
    )
    return watched


LOST_COLUMNS = (
    "[...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
)


def test_a_pipeline_that_fails_loses_no_column_in_its_tab_and_is_short_on_a_telephone(
    failing: Scheduler, chromium: Browser
) -> None:
    url, begins = failing.stack.airflow.url, "ValueError: no such column"
    with visit(chromium, url, failing.token, width=1400) as seen:
        seen.open("dags/watched/plugin/epochline_pipeline")
        seen.frame.locator("html[data-theme=dark]").wait_for()
        navy = seen.frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        seen.page.frames[-1].goto(f"{url}/epochline/pipelines/failing")
        assert seen.page.frames[-1].evaluate(LOST_COLUMNS) == []
        seen.page.frames[-1].goto(f"{url}/epochline/")
        assert seen.page.frames[-1].evaluate(LOST_COLUMNS) == []
        seen.open("epochline/pipelines/failing")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == navy
        banner = seen.page.locator(".standing").inner_text()
        told = [banner.index(one) for one in ("keeps", "since", begins, "No offset moved", "epochline run failing")]
        assert told == sorted(told), "what is wrong, since when, why, what to do"
        seen.open("epochline/pipelines/failing/epochs/60")
        assert seen.page.evaluate(LOST_COLUMNS) == []
        assert seen.page.get_by_text("attempts 1-20:").count() == 1
    for theme in ("dark", "light"):
        with visit(chromium, url, failing.token, theme=theme, width=400) as seen:
            seen.open("epochline/pipelines/failing")
            assert seen.hindrances() == []
            assert seen.page.evaluate("document.documentElement.scrollHeight") <= 4000
            assert not seen.page.get_by_role("link", name="epoch 40", exact=True).is_visible()
            seen.page.evaluate("location.hash = '#history'")
            seen.page.get_by_role("link", name="epoch 40", exact=True).wait_for()
            assert not seen.overflows()


@pytest.mark.parametrize(
    ("theme", "width", "pages"),
    [("dark", NARROW, (*PAGES, *FORMS)), ("dark", WIDE, PAGES), ("light", NARROW, PAGES), ("light", WIDE, PAGES)],
    ids=["dark-narrow", "dark-wide", "light-narrow", "light-wide"],
)
def test_axe_finds_nothing_serious_and_no_page_is_wider_than_its_window(
    watched: Scheduler, chromium: Browser, theme: Theme, width: int, pages: Sequence[str]
) -> None:
    """Every page, in Airflow's two themes, also on a small telephone; every form once: one template makes them."""
    with visit(chromium, watched.stack.airflow.url, watched.token, theme=theme, width=width) as seen:
        for page in pages:
            seen.open(f"epochline/{page}")
            assert (page, seen.hindrances(), seen.overflows()) == (page, [], False)


def test_a_page_follows_airflows_theme_and_opens_airflows_own_pages_around_it(
    watched: Scheduler, chromium: Browser
) -> None:
    with visit(chromium, watched.stack.airflow.url, watched.token) as seen:
        seen.open(f"dags/{PIPELINE}/plugin/epochline_pipeline")
        ground = seen.frame.locator("html")
        ground.and_(seen.frame.locator("[data-theme=dark]")).wait_for()
        assert seen.hindrances() == []
        seen.page.evaluate("document.documentElement.classList.replace('dark', 'light')")
        ground.and_(seen.frame.locator("[data-theme=light]")).wait_for()
        assert seen.hindrances() == []
        theirs = seen.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--chakra-colors-fg')")
        assert ground.evaluate("root => root.style.getPropertyValue('--text')") == theirs

        seen.frame.get_by_role("link", name="epoch 1", exact=True).first.click()
        seen.frame.get_by_role("heading", name="Attempts").wait_for()
        seen.frame.get_by_role("link", name="manual__").first.click()
        seen.page.wait_for_url(f"**/dags/{PIPELINE}/runs/manual__*")
        seen.page.get_by_role("link", name="Epoch", exact=True).click()
        seen.frame.get_by_role("heading", name="epoch 1").wait_for()


def test_links_at_a_task_open_the_epoch_the_pipeline_and_sparks_log_within_airflow(
    watched: Scheduler, chromium: Browser
) -> None:
    [(run,)] = watched.query("SELECT run_id FROM epochline.epochs WHERE pipeline = %s AND epoch_id = 1", PIPELINE)
    of_run = f"dags/{PIPELINE}/runs/{quote(run, safe='')}"
    with visit(chromium, watched.stack.airflow.url, watched.token) as seen:

        def follow(link: str) -> None:
            seen.open(f"{of_run}/tasks/commit_epoch/details")
            seen.page.get_by_role("link", name=link, exact=True).click()

        follow("Epoch")
        seen.frame.get_by_text("epoch 1 · ").get_by_text("1 quarantined (").wait_for()
        follow("Pipeline")
        seen.frame.get_by_role("heading", name=PIPELINE).wait_for()
        follow("Spark's log")
        seen.page.get_by_text("job.started").first.wait_for()


def test_a_page_refreshes_without_losing_the_place_and_says_when_it_cannot(
    watched: Scheduler, chromium: Browser
) -> None:
    with visit(chromium, watched.stack.airflow.url, watched.token) as seen:
        page = seen.page
        page.clock.install()
        seen.open(f"epochline/pipelines/{PIPELINE}")
        summary = page.get_by_text("SQL of the overview")
        summary.click()
        seen.page.evaluate("document.querySelector('main').dataset.before = 'yes'")

        page.clock.run_for(11_000)
        page.locator("main:not([data-before])").wait_for()
        assert page.locator("details.sql[open]").count() == 1
        assert page.evaluate("document.activeElement.textContent") == "SQL of the overview"

        page.context.set_offline(True)
        page.clock.run_for(11_000)
        page.get_by_role("alert").get_by_text("What is shown here is old").wait_for()
        seen.errors.clear()  # Chromium reports the request that failed

        page.context.set_offline(False)
        page.clock.run_for(11_000)
        page.get_by_role("alert").wait_for(state="hidden")


def test_a_keyboard_alone_reaches_an_epoch(watched: Scheduler, chromium: Browser) -> None:
    with visit(chromium, watched.stack.airflow.url, watched.token) as seen:
        seen.open(f"epochline/pipelines/{PIPELINE}")
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.textContent") == "Skip to the content"
        for _ in range(40):
            seen.page.keyboard.press("Tab")
            if seen.page.evaluate("document.activeElement.textContent") == "epoch 1":
                break
        seen.page.keyboard.press("Enter")
        seen.page.get_by_role("heading", name="Attempts").wait_for()


def test_an_action_is_previewed_and_started_within_airflows_frame_by_the_keyboard_alone(
    watched: Scheduler, chromium: Browser
) -> None:
    """Airflow's sandbox forbids dialogs and lets forms through; the browser says itself that the origin is the same."""
    with visit(chromium, watched.stack.airflow.url, watched.token) as seen:
        seen.open(f"dags/{PIPELINE}/plugin/epochline_pipeline")
        seen.frame.get_by_role("link", name="Make a savepoint").press("Enter")
        seen.frame.get_by_label("Name").fill("from_a_browser")
        seen.frame.get_by_label("Name").press("Enter")
        seen.frame.get_by_role("heading", name="What would change").wait_for()
        seen.frame.get_by_label("Reason").fill("a browser <b>asks</b>")
        seen.frame.get_by_role("button", name="Make a savepoint").press("Enter")
        seen.frame.get_by_role("heading", name="Actions that these pages started").wait_for()
        kept_it = seen.frame.get_by_text("savepoint from_a_browser of watched is kept")
        eventually("the action's run has kept it", kept_it.count, every=0.5)

    kept = watched.query("SELECT made_by, reason FROM epochline.savepoints WHERE name = 'from_a_browser'")
    assert kept == [("admin", "a browser <b>asks</b>")]
