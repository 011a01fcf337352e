"""Every number on a page leads to what made it, and every row of a table says on a telephone what it shows (issue 19)."""

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from epochline.airflow.acts import ACTS
from epochline.airflow.pages.quarantine import Place, QuarantineFilter, quarantine_view, record_view
from epochline.airflow.pages.views import HistoryFilter
from epochline.airflow.reading import snapshot
from tests.contract.worlds import World, aborted, postgres_world, quarantined
from tests.databases import query
from tests.elements import Elements
from tests.integration.page_views import epoch, html, pages, pipeline

# Where digits are no number that came of a run, or stand beside a link that leads to the same place.
_WITHOUT_A_LINK = {
    "title": "the name of a page; or of a chart, which is a link or repeats the linked numbers of its row",
    "h1": "what the page is about",
    "h3": "the size of the bytes that stand below it",
    "time": "a moment: its epoch, run or action is named in the same cell or row",
    "dt": "the name of a number",
    "thead": "the name of a column",
    "summary": "the name of a statement",
    "pre": "SQL, or the bytes of a record",
    "code": "a command line",
    "form": "what a person fills in",
    ".name": "what a topic, partition, place, host, user or run is called",
    ".said": "a sentence that the ledger keeps: an error, a note, a reason",
    ".text": "a sentence that the ledger keeps, or what to do",
    ".error": "a sentence that the ledger keeps",
    ".now": "what to do; its numbers are those of the overview",
    ".from": "where an axis begins",
    ".badge": "a state in words",
    ".outcome": "the line that the run shows; the page below it has each of its numbers as a link",
}
_NO_END = {"meta", "link", "input", "br", "rect", "polyline", "img"}


class Numbers(HTMLParser):
    """The texts with a digit that are neither a link nor justified above."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._around: list[set[str]] = []
        self.unlinked: list[str] = []
        self.linked: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _NO_END:
            self._around.append({tag, *(f".{one}" for one in (dict(attrs).get("class") or "").split())})

    def handle_endtag(self, tag: str) -> None:
        if tag not in _NO_END:
            self._around.pop()

    def handle_data(self, data: str) -> None:
        around = {name for one in self._around for name in one}
        if not re.search(r"\d", data):
            return
        if "a" in around:
            self.linked.append(data.strip())
        elif not around & _WITHOUT_A_LINK.keys():
            self.unlinked.append(data.strip())


@pytest.fixture
def world(postgres_dsn: str) -> World:
    """A ledger that fills every section of every page."""
    world = postgres_world(postgres_dsn)
    quarantined(world)
    world.kafka.produce("orders", 0, 8)
    aborted(world, 2, record_limit=4)
    aborted(world, 3, record_limit=4)
    world.to_committed("run-3", record_limit=4)
    world.to_committed("run-4", record_limit=2)
    aborted(world, 5, record_limit=1)
    world.to_begun("run-6", record_limit=1)
    query(
        postgres_dsn,
        "INSERT INTO epochline.savepoint (pipeline, name, epoch_id, generation, declaration, made_by, reason)"
        " VALUES ('orders', 'v1', 1, 1, '{}', 'ada7', 'before 8');"
        " INSERT INTO epochline.action (pipeline, action, epoch_id, actor, reason, before, after)"
        " VALUES ('orders', 'retry', 2, 'ada7', 'at 9', '{}', '{}');"
        " INSERT INTO epochline.receipt (pipeline, epoch_id, sink, attempt_id, rows, due_at)"
        " SELECT pipeline, epoch_id, 'kafka:out7', attempt_id, 3, now() FROM epochline.receipt WHERE epoch_id = 4;"
        " INSERT INTO epochline.state_version (pipeline, epoch_id, state, keys, digest) VALUES ('orders', 4, 'totals7', 12, 1);"
        " CREATE TABLE totals7 (k text); INSERT INTO epochline.state_table (schema_name, table_name, relation)"
        " VALUES ('public', 'totals7', 'totals7'::regclass)",
    )
    return world


def shown(dsn: str, inspector: str) -> dict[str, str]:
    """Every page, by its address within the pages."""
    made = pages(dsn)
    started = {
        "action": "retry", "state": "failed", "queued_at": None, "user": "ada7", "reason": "at 9", "said": "1 is 1",
        "dag_id": "orders", "run_id": "run-1",
    }  # fmt: skip
    acts = {"may_act": True, "acts": ACTS.values(), "started": [started], "chosen": HistoryFilter()}
    whole = html("pipeline.html", "/pipelines/orders", view=pipeline(dsn), **acts)
    found = {"": made["pipelines"], "pipelines/orders": whole, "pipelines/orders/epochs/1": made["epoch"]}
    for number in range(2, 7):
        path = f"pipelines/orders/epochs/{number}"
        found[path] = html("epoch.html", f"/{path}", view=epoch(dsn, number))
    chosen = QuarantineFilter()
    with snapshot(inspector, inspect=True) as ledger:
        place = Place(epoch=1, topic="orders", partition=0, offset=2)
        kept, record = quarantine_view(ledger, "orders", chosen, inspect=True), record_view(ledger, "orders", place)
    for path, template, values in (
        ("pipelines/orders/quarantine", "quarantine.html", {"view": kept, "chosen": chosen, "may_act": True}),
        ("pipelines/orders/quarantine/record", "record.html", {"view": record}),
    ):
        found[path] = html(template, f"/{path}", **values)
    return found


@pytest.fixture
def html_of(world: World, login: Callable[..., str], postgres_dsn: str) -> dict[str, str]:
    return shown(postgres_dsn, login("epochline_inspector"))


def test_every_number_on_every_page_is_a_link_or_is_justified_here(html_of: dict[str, str]) -> None:
    """Issue 19: every number links to its run or log."""
    found = {path: Numbers(text) for path, text in html_of.items()}

    assert {path: one.unlinked for path, one in found.items() if one.unlinked} == {}
    assert {path for path, one in found.items() if not one.linked} == set(), "the walk saw every page"


def hrefs(text: str) -> Iterator[tuple[str, bool]]:
    """Each link, and whether it leads to a page of Airflow's own."""
    for tag, one in Elements(text).found:
        if tag == "a":
            yield str(one["href"]), "data-airflow" in one


def test_every_link_leads_to_a_page_and_a_place_that_are_there(html_of: dict[str, str]) -> None:
    """A link to a run or a log names a run of the ledger, and a task of a pipeline's DAG."""
    places = {path: {one["id"] for _, one in Elements(text).found if "id" in one} for path, text in html_of.items()}
    runs = {f"run-{number}" for number in range(1, 7)}
    wrong, counted = [], 0
    for path, text in html_of.items():
        for href, airflow in hrefs(text):
            link = urlsplit(href)
            to = re.sub(r"^(\.\./)+|^\./", "", unquote(link.path))
            if airflow:
                right = re.fullmatch(r"dags/orders/runs/(run-\d)(/tasks/(plan_epoch|pre_commit|commit_epoch))?", to)
                good = (right is not None and right[1] in runs) or to in ("dags/epochline_log_ends", "assets")
            elif "/act/" in to:
                good = to.rpartition("/")[2] in ACTS
            elif to == "pipelines/orders/why":
                good = True  # a form, which tests/integration/test_why.py fills in
            else:
                to = to if link.path else path
                good = to in places and (not link.fragment or link.fragment in places[to])
            counted += 1
            if not good:
                wrong.append((path, href))
    assert wrong == []
    assert counted > 200


def test_a_percentile_leads_to_the_epoch_of_its_nearest_rank(world: World, postgres_dsn: str) -> None:
    """Of 20 epochs, the 95th percentile is the 19th in order, and the 99th is the last one. 19 have no percentile."""
    query(
        postgres_dsn,
        "INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, attempt, dag_id, run_id, host,"
        " declaration_hash, lease_until, planned_at, pre_committed_at, committed_at, records_read, records_passed,"
        " records_skipped, records_quarantined, rows_written)"
        " SELECT pipeline, 100 + n, generation, 'COMMITTED', 1, dag_id, 'run-' || n, host, declaration_hash, now(), now(),"
        " now(), now(), 1000 + (n * 7) % 20, 1000 + (n * 7) % 20, 0, 0, 5 FROM epochline.epoch, generate_series(0, 16) n"
        " WHERE epoch_id = 1",
    )

    [records] = [one for one in pipeline(postgres_dsn).summary.rows if one["measure"] == "records"]

    known = dict(query(postgres_dsn, "SELECT epoch_id, records_read FROM epochline.epoch WHERE state = 'COMMITTED'"))
    in_order = sorted(known, key=lambda one: (known[one], one))
    assert (records["epochs"], len(in_order)) == (20, 20)
    ranks = {"least": 1, "median": 10, "p95": 19, "p99": 20, "most": 20}
    assert {name: records[f"{name}_epoch"] for name in ranks} == {name: in_order[at - 1] for name, at in ranks.items()}
    assert {name: records[name] for name in ranks} == {name: known[in_order[at - 1]] for name, at in ranks.items()}
    query(postgres_dsn, "DELETE FROM epochline.epoch WHERE epoch_id = 116")
    [fewer] = [one for one in pipeline(postgres_dsn).summary.rows if one["measure"] == "records"]
    assert (fewer["epochs"], fewer["p95"], fewer["p99"]) == (19, None, None)


def test_the_recovered_epochs_that_are_counted_are_those_of_the_history(world: World, postgres_dsn: str) -> None:
    view = pipeline(postgres_dsn, state="RECOVERED")

    assert [row["epoch_id"] for row in view.history.rows] == [3]
    assert {row["state"]: row["epochs"] for row in view.states.rows}["RECOVERED"] == 1


def test_an_epoch_of_the_command_line_links_to_no_run_of_airflow(world: World, postgres_dsn: str) -> None:
    """Its run is a name, and its numbers lead to its attempts."""
    query(postgres_dsn, "UPDATE epochline.epoch SET dag_id = 'cli' WHERE epoch_id = 1")

    links = [href for href, airflow in hrefs(pages(postgres_dsn)["epoch"]) if airflow]

    assert [one for one in links if "/dags/cli" in one] == []


def test_each_cell_has_the_name_of_its_column_without_a_script(html_of: dict[str, str]) -> None:
    """Issue 19: readable at 360 pixels, where each row is a card."""
    tables = 0
    for path, text in html_of.items():
        for table in re.findall(r"<table[^>]*>.*?</table>", text, re.DOTALL):
            tables += 1
            assert 'class="cards"' in table.partition(">")[0], path
            names = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)
            for row in re.findall(r'<tr(?![^>]*class="said")[^>]*>(?!<th scope="col")(.*?)</tr>', table, re.DOTALL):
                cells: list[dict[str, Any]] = [one for tag, one in Elements(row).found if tag in ("td", "th")]
                assert [one.get("data-label") for one in cells] == names, path
    assert tables > 20
