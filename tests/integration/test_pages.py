"""The pages in Airflow, made from a real ledger by a reader's login (issue 19). Who may see them: tests/airflow."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.pages import fill
from epochline.airflow.outcome import EpochOutcome
from epochline.airflow.pages.charts import rates, time_to_loss
from epochline.airflow.pages.views import HistoryFilter, as_json, epoch_view, pipeline_view, pipelines_view
from epochline.airflow.reading import Snapshot, Table, snapshot
from epochline.declare.names import QUARANTINE
from epochline.errors import LedgerError
from epochline.operations import refresh_log_ends
from epochline.protocol.planning import Retention
from tests.contract.worlds import World, aborted, quarantined
from tests.databases import query
from tests.elements import Elements
from tests.integration.page_views import epoch, html, pages, pipeline, pipelines

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}"


def test_an_empty_ledger_has_a_page_that_says_so(reader: str) -> None:
    assert "There is no pipeline that you may see" in html("pipelines.html", "/", view=pipelines(reader))


def test_the_list_says_how_far_behind_a_pipeline_is_and_what_to_do(world: World, reader: str) -> None:
    world.to_committed("run-1", record_limit=4)

    view = pipelines(reader)

    [row], [standing] = view.pipelines.rows, view.standings
    assert (row["pipeline"], row["lag"], row["committed_epoch"], row["failures"]) == ("orders", 11, 1, 0)
    assert row["lag_seconds"] > 0
    assert (standing.state, standing.tone, standing.command) == ("behind", "good", None)
    assert [(one["state"], one["epochs"]) for one in view.day.rows] == [("COMMITTED", 1)]
    world.to_committed("run-2")
    assert [one.state for one in pipelines(reader).standings] == ["caught up"]


def test_a_declared_pipeline_without_an_epoch_is_in_the_list_and_has_a_page(
    world: World, reader: str, postgres_dsn: str
) -> None:
    """One that never ran, and one whose first plan failed, with the reason."""
    world.to_committed()
    query(
        postgres_dsn,
        "INSERT INTO epochline.plan_failure (pipeline, dag_id, run_id, error, error_class)"
        " VALUES ('refused', 'refused', 'run-1', 'ConfigurationError: it names no host', 'ConfigurationError')",
    )

    view = pipelines(reader, declared=("refused", "orders", "never_ran"))

    states = {row["pipeline"]: one.state for row, one in zip(view.pipelines.rows, view.standings, strict=True)}
    assert list(states.items()) == [("refused", "cannot plan"), ("orders", "caught up"), ("never_ran", "not started")]
    assert "it names no host" in html("pipelines.html", "/", view=view)
    assert pipelines(reader, lambda names: set(), declared=("never_ran",)).standings == []
    for name, said in (("never_ran", "not started"), ("refused", "it names no host")):
        with snapshot(reader) as ledger:
            of_one = pipeline_view(ledger, name, HistoryFilter(), declared=("never_ran",))
            assert pipeline_view(ledger, "unknown", HistoryFilter(), declared=("never_ran",)) is None
        assert said in html("pipeline.html", f"/pipelines/{name}", view=of_one, chosen=HistoryFilter())


def test_a_pipeline_that_a_user_may_not_see_is_not_in_the_list(world: World, reader: str) -> None:
    """SEC-9."""
    world.to_committed()

    view = pipelines(reader, lambda names: set())

    assert (view.pipelines.rows, view.standings, view.day.rows) == ([], [], [])


def test_failures_since_the_last_commit_are_counted_and_the_cause_is_shown(world: World, reader: str) -> None:
    world.to_committed("run-1", record_limit=4)
    for number in (2, 3):
        aborted(world, number, "the target refuses")

    view = pipeline(reader)

    assert view.pipeline.rows[0]["aborts"] == 2
    assert (view.standing.state, view.standing.command) == ("failing", "run orders")
    shown = pages(reader)
    for name in ("pipelines", "pipeline"):
        said = ("failing</span>", "since <time", "the target refuses", "No offset moved")
        told = [shown[name].index(one) for one in said]
        assert told == sorted(told), "what is wrong, since when, why, what to do"
    assert "epochline run orders" in shown["pipeline"]


def test_an_error_that_repeats_is_shown_once_for_its_attempts_and_epochs(
    world: World, reader: str, postgres_dsn: str
) -> None:
    for number in (1, 2):
        aborted(world, number, f"ValueError: no city in epoch {number} (parse.py:3)")
    world.to_begun("run-3")
    query(
        postgres_dsn,
        "INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host, failed_at, fenced_at, ended_at,"
        " error, error_class) SELECT pipeline, epoch_id, n, dag_id, run_id, 'host-' || n % 2, now(), now(), now(),"
        " 'ValueError: no city (parse.py:3); attempt ' || n + 1 || ' took its place', 'ValueError'"
        " FROM epochline.attempt, generate_series(2, 40) n WHERE epoch_id = 3;"
        " UPDATE epochline.attempt SET attempt = 41 WHERE epoch_id = 3 AND attempt = 1;"
        " UPDATE epochline.epoch SET attempt = 41 WHERE epoch_id = 3",
    )

    shown = pages(reader, 3)

    attempts = shown["epoch"].partition('id="attempts"')[2].partition("<details")[0]
    assert re.findall(r'attempts? [^:]*: <p class="said">ValueError[^<]*', attempts) == [
        'attempts 2-40: <p class="said">ValueError: no city (parse.py:3); attempt 41 took its place'
    ]
    assert re.findall(r">([\d-]+)</a></th>", attempts) == ["41", "2-40"]
    history = shown["pipeline"].partition('id="history"')[2]
    assert re.findall(r'epochs [^:]*: <p class="said">ValueError[^<]*', history) == [
        'epochs 1-2: <p class="said">ValueError: no city in epoch 2 (parse.py:3)'
    ]
    assert history.count("no city in epoch") == 1


def test_the_history_is_paged_by_epoch_and_no_epoch_is_left_out_or_shown_twice(world: World, reader: str) -> None:
    for number in range(5):
        world.to_committed(f"run-{number}", record_limit=2)
    seen, before = [], None

    while True:
        view = pipeline(reader, before=before, size=2)
        seen += [row["epoch_id"] for row in view.history.rows]
        before = view.older
        if before is None:
            break

    assert seen == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        ({"state": "ABORTED"}, [2]),
        ({"state": "COMMITTED"}, [1]),
        ({"kind": "backfill"}, []),
        ({"kind": "regular", "state": ""}, [2, 1]),
        ({"since": "2000-01-01T00:00"}, [2, 1]),
        ({"until": "2000-01-01T00:00"}, []),
    ],
)
def test_the_history_is_filtered(world: World, reader: str, chosen: dict[str, str], shown: list[int]) -> None:
    world.to_committed("run-1", record_limit=4)
    aborted(world, 2)

    assert [row["epoch_id"] for row in pipeline(reader, **chosen).history.rows] == shown


def test_an_epoch_shows_both_balances_and_the_places_of_its_quarantined_records(world: World, reader: str) -> None:
    """INV-9: offsets = read + without a record; read = passed + skipped + quarantined; a sink has as many rows."""
    quarantined(world)

    view = epoch(reader, 1)

    for one in view.ranges.rows:
        assert one["offsets"] == one["records_read"] + one["invisible"]
        assert one["records_read"] == one["records_passed"] + one["records_skipped"] + one["records_quarantined"]
    assert sum(one["records_quarantined"] for one in view.ranges.rows) == 2
    assert {one["sink"]: one["rows"] for one in view.receipts.rows}["orders"] == 13
    assert [(one["partition"], one["offset"]) for one in view.quarantined.rows] == [(0, 2), (0, 3)]
    assert "8 passed, 0 skipped, 2 quarantined, 0 without a record" in pages(reader)["epoch"]


def retain(world: World, policy: str) -> None:
    world.kafka.retention["orders"] = Retention(cleanup_policy=policy, milliseconds=3_600_000, bytes=-1)
    refresh_log_ends(world.ledger, world.kafka, [world.pipeline], "epochline_kafka")


def test_a_backlog_says_how_long_its_records_are_safe_and_a_compacted_topic_says_so(
    world: World, reader: str, postgres_dsn: str
) -> None:
    """Issue 19: time to loss, in the list, in the overview and for each partition."""
    world.to_committed("run-1", record_limit=4)
    assert time_to_loss(pipelines(reader).pipelines.rows[0]).note.startswith("the DAG epochline_log_ends")
    retain(world, "delete")
    query(postgres_dsn, "UPDATE epochline.planned_range SET newest_timestamp = now() - interval '50 min'")

    shown = pages(reader)

    for name in ("pipelines", "pipeline"):
        assert re.search(r'class="figure badge warning" href="[^"]*#loss">at least (9|10)\u202fmin', shown[name]), name
    retain(world, "compact")
    assert "the topic is compacted" in pages(reader)["pipelines"]


def test_the_overview_counts_recovered_epochs_and_savepoints(world: World, reader: str, postgres_dsn: str) -> None:
    aborted(world, 1)
    world.to_committed("run-1")
    query(
        postgres_dsn,
        "INSERT INTO epochline.savepoint (pipeline, name, epoch_id, generation, declaration, made_by, reason)"
        " VALUES ('orders', 'before', 1, 1, '{}', 'ada', 'why')",
    )

    view = pipeline(reader)

    assert {row["state"]: row["epochs"] for row in view.states.rows} == {"COMMITTED": 1, "RECOVERED": 1}
    assert (view.pipeline.rows[0]["savepoints"], view.pipeline.rows[0]["newest_savepoint"]) == (1, "before")


def test_lag_after_each_epoch_and_both_rates_come_from_the_ends_that_plans_saw(
    world: World, reader: str, postgres_dsn: str
) -> None:
    world.to_committed("run-1", record_limit=4)
    world.kafka.produce("orders", 0, 60)
    world.to_committed("run-2", record_limit=10)
    query(
        postgres_dsn,
        "UPDATE epochline.epoch SET planned_at = committed_at - make_interval(secs => CASE epoch_id WHEN 1 THEN 22 ELSE 2 END)",
    )
    between = "SELECT extract(epoch FROM max(planned_at) - min(planned_at))::float8 FROM epochline.epoch"
    [(seconds_between,)] = query(postgres_dsn, between)

    view = pipeline(reader)

    assert [row["lag_after"] for row in view.history.rows] == [61, 11]
    assert [(row["lag_after"], row["written"]) for row in view.flow.rows] == [(11, None), (61, 60)]
    assert [sum(one["lags"]) for one in view.partitions.rows] != [0, 0]
    found = rates(view.flow.rows)
    assert found.input == pytest.approx(60 / seconds_between)
    assert found.process == pytest.approx(14 / 24, rel=0.01)
    assert "falls behind" in found.text
    page, of_day = pages(reader)["pipeline"], pages(reader)["pipelines"]
    for what, unit, charts in (("flow", "records/s", 1), ("flow", "records", 1), ("partitions", "records", 2)):
        part = page.partition(f'id="{what}"')[2].partition('<details class="sql"')[0]
        axes = rf'class="most">[\d.,]+<span class="line">{unit}</span></span><span class="least">0</span>'
        began = r'class="from"><time[^>]*>\d\d-\d\d \d\d:\d\d</time></span>'
        times = began + r'<span class="to"><time[^>]*>[-\d :]+</time> UTC<'
        assert (len(re.findall(axes, part)), len(re.findall(times, part))) == (charts, 2), (what, unit)
    of_an_hour = r'class="most">2<span class="line">an hour</span>.*</time> UTC</span><span class="to">now<'
    assert re.search(of_an_hour, of_day)


def test_an_epoch_shows_both_sides_of_the_balance_of_its_rows(world: World, reader: str, postgres_dsn: str) -> None:
    """INV-9: the rows of the manifest are those of its parts and those of the sink."""
    quarantined(world)

    staged = {row["sink"]: row for row in epoch(reader, 1).staged.rows}

    assert (staged["orders"]["rows"], staged["orders"]["rows_found"], staged["orders"]["parts"]) == (13, 13, 2)
    assert staged[QUARANTINE]["rows_found"] == 2
    assert '<tr class="bad">' not in pages(reader)["epoch"].partition('id="balance"')[2]
    query(postgres_dsn, "UPDATE epochline.part SET rows = rows + 1 WHERE sink = 'orders' AND spark_partition = 0")
    assert pages(reader)["epoch"].partition('id="balance"')[2].count('<tr class="bad">') == 1


def test_the_lineage_of_an_epoch_names_its_offsets_and_the_assets_of_its_sinks(world: World, reader: str) -> None:
    world.to_committed("run-1", record_limit=4)

    lineage = pages(reader)["epoch"].partition('id="lineage"')[2].partition("</section>")[0]

    assert "4 offsets of 2 partitions" in lineage
    assert "epochline://orders/orders" in lineage
    assert "event not emitted yet" in lineage
    assert "../dags/orders/runs/run-1/tasks/pre_commit" in lineage


def test_a_state_table_has_its_size_on_disk(reader: str, postgres_dsn: str) -> None:
    query(
        postgres_dsn,
        "CREATE TABLE totals (k text); INSERT INTO totals SELECT repeat('x', 100) FROM generate_series(1, 1000);"
        " INSERT INTO epochline.state_table (schema_name, table_name, relation) VALUES ('public', 'totals', 'totals'::regclass)",
    )

    assert query(reader, "SELECT table_name, bytes > 100000 FROM epochline.state_sizes") == [("totals", True)]


def test_an_epochs_page_begins_with_the_line_that_its_tasks_show(world: World, reader: str) -> None:
    """Issue 19: one line of what came of an epoch, whether its tasks or the pages read the ledger."""
    quarantined(world)
    world.kafka.produce("orders", 0, 9)
    world.to_sealed("run-2")

    def of_tasks(epoch_id: int) -> str:
        with world.ledger.transaction() as tx:
            one, paused = tx.epochs.lock("orders", epoch_id), tx.operators.standing("orders").paused
            return str(EpochOutcome.of(one, tx.epochs.ranges(one), paused))

    assert epoch(reader, 1).outcome == of_tasks(1)
    assert "2 quarantined (13.3%) · committed" in of_tasks(1)
    assert epoch(reader, 2).outcome == of_tasks(2)
    assert of_tasks(2).endswith("pre-committed · the next run commits it")
    with world.ledger.transaction() as tx:
        tx.operators.pause("orders", "ada", "a test says so")
    world.abort(2, "run-2", reason="a test", by_operator=True)
    assert epoch(reader, 2).outcome == of_tasks(2)
    assert of_tasks(2).endswith("the pipeline is paused; to go on, run `epochline resume orders --reason …`")
    assert "outcome" in as_json(epoch(reader, 2))
    assert pages(reader, 2)["epoch"].index("epoch 2 · ") < pages(reader, 2)["epoch"].index("Planned")


def test_hostile_text_of_a_record_a_run_an_error_and_a_reason_is_shown_and_never_markup(
    world: World, reader: str, postgres_dsn: str
) -> None:
    """SEC-9."""
    world.to_committed("run-1", record_limit=4, note=MARKUP)
    aborted(world, 2, MARKUP, note=MARKUP)
    query(
        postgres_dsn,
        "UPDATE epochline.epoch SET run_id = %(x)s, error = %(x)s, note = %(x)s; UPDATE epochline.attempt SET error = %(x)s,"
        " host = %(x)s; UPDATE epochline.log_end SET topic = %(x)s; UPDATE epochline.pipeline SET paused_at = now(),"
        " paused_by = %(x)s, paused_reason = %(x)s; INSERT INTO epochline.action (pipeline, action, epoch_id, actor,"
        " reason, before, after) VALUES ('orders', %(x)s, 2, %(x)s, %(x)s, '{}', '{}')".replace(
            "%(x)s", "'" + MARKUP.replace("'", "''") + "'"
        ),
    )
    harmless = pages(reader, 2)
    rows = [{**one, "topic": MARKUP} for one in pipeline(reader).partitions.rows]
    hostile = replace(pipeline(reader), partitions=Table(rows=rows, sql=MARKUP))
    harmless["hostile"] = html("pipeline.html", "/pipelines/orders", view=hostile, chosen=HistoryFilter())

    for name, text in harmless.items():
        elements = Elements(text).found
        scripts = [attributes.get("src") or "inline" for tag, attributes in elements if tag == "script"]
        assert [one.rpartition("/")[2] for one in scripts] == ["pages.js"], name
        assert [tag for tag, _ in elements if tag == "img"] == [], name
        assert [key for _, attributes in elements for key in attributes if key.startswith("on") or key == "style"] == []
        assert "{{ 7 * 7 }}" in text, "a template in a text is text"
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text, name


def test_a_page_changes_nothing_even_if_its_statement_tries(reader: str, postgres_dsn: str) -> None:
    """SEC-9: neither does a page of a login that could: the transaction is read only."""
    for dsn in (reader, postgres_dsn):
        with snapshot(dsn) as ledger, pytest.raises(Exception, match="read-only transaction|permission denied"):
            ledger.ask("mark_committed", pipeline="x", epoch_id=1, rows_written=0)


def test_a_ledger_that_is_missing_is_named(stack: Any) -> None:
    with pytest.raises(LedgerError, match="epochline migrate"), snapshot(stack.postgres.dsn("postgres")) as ledger:
        ledger.ask("page_pipelines", pipeline=None)


def test_each_setting_of_the_newest_epoch_is_shown_with_the_level_that_set_it(world: World, reader: str) -> None:
    world.to_committed()

    settings = {row["setting"]: (row["value"], row["set_by"]) for row in pipeline(reader).settings.rows}

    assert settings["on_cancel"] == ("retain", "default")
    assert all(set_by for _, set_by in settings.values())


def test_the_sql_of_a_table_gives_its_rows(world: World, reader: str) -> None:
    """What a person copies from below a table."""
    world.to_committed()
    view = pipeline(reader)

    assert len(query(reader, view.history.sql.replace("%", "%%"))) == 1
    assert len(query(reader, view.partitions.sql)) == 2


OF_THE_LEDGER = "relnamespace = 'epochline'::regnamespace"
BLOCKS = f"SELECT sum(pg_stat_get_xact_blocks_fetched(oid))::int FROM pg_class WHERE {OF_THE_LEDGER}"
"""The blocks of 8 KiB of the ledger that a transaction has asked for so far, and each one as often as it asked; also those of earlier transactions."""

MOST_BLOCKS = 4_000
"""The busiest page asks for 2,844 with 100,000 epochs; the smallest of the five tables that grow has 1,235."""


def test_every_page_reads_a_small_part_of_a_ledger_of_100_000_epochs(
    world: World, reader: str, postgres_dsn: str
) -> None:
    """Issue 19: flat over time. What a page takes in seconds is bench/pages.py's to say."""
    world.to_committed("run-1", record_limit=4)
    fill(postgres_dsn, 100_000)
    reads: dict[str, Callable[[Snapshot], object]] = {
        "pipelines": lambda ledger: pipelines_view(ledger, set),
        "pipeline": lambda ledger: pipeline_view(ledger, "orders", HistoryFilter()),
        "an old page of the history": lambda ledger: pipeline_view(ledger, "orders", HistoryFilter(before=50_000)),
        "a rare kind": lambda ledger: pipeline_view(ledger, "orders", HistoryFilter(kind="backfill")),
        "a rare state": lambda ledger: pipeline_view(ledger, "orders", HistoryFilter(state="ABORTED")),
        "epoch": lambda ledger: epoch_view(ledger, "orders", 50_000),
    }

    asked = {}
    for name, read in reads.items():
        with snapshot(reader) as ledger:
            session = ledger._connection
            session.exec_driver_sql("SET LOCAL max_parallel_workers_per_gather = 0")  # its reads are counted elsewhere
            before = session.exec_driver_sql(BLOCKS).scalar_one()
            read(ledger)
            asked[name] = session.exec_driver_sql(BLOCKS).scalar_one() - before

    assert {name: one for name, one in asked.items() if one > MOST_BLOCKS} == {}
