"""The commands against a real ledger and a real Kafka."""

import csv
import io
import json
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from psycopg2.extensions import parse_dsn

from epochline.cli.connections import adapters
from epochline.config import discovery
from epochline.coordinator import PlanRequest, plan
from epochline.errors import EpochlineError
from epochline.kafka.source import KafkaOffsets
from epochline.local.stack import Stack
from epochline.protocol.epoch import Epoch
from tests.commands import Call, connect_to
from tests.databases import as_connection, query
from tests.integration.bench import LINEAGE
from tests.integration.kafka_topics import produce
from tests.integration.logins import Login, user
from tests.integration.people import RUN, Patch, declaration, declare

ROOT = Path(__file__).parents[2]


def test_migrate_makes_targets_once_and_says_so(call: Call, postgres_dsn: str) -> None:
    assert "people: made people" in call.shown("migrate")
    assert call.json("migrate")["created"] == {"people": []}
    assert query(postgres_dsn, "SELECT count(*) FROM people") == [(0,)]


def test_migrate_knows_the_login_of_the_pages_by_its_connection(call: Call, login: Login, monkeypatch: Patch) -> None:
    """SEC-6: an installation of one's own needs no SQL that the pages have to ask for."""
    pages = login()
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_READER", pages)

    left = call.json("migrate")["left_to_a_dba"]

    grants = [
        f'GRANT "epochline_reader" TO "{user(pages)}";',
        f'GRANT "epochline_inspector" TO "{user(pages)}" WITH INHERIT FALSE;',
    ]
    assert list(left.values()) == [grants]
    assert "".join(f"  {grant}\n" for grant in grants) in call("migrate")[1]


def test_migrate_names_a_broken_declaration_and_makes_the_other_targets(call: Call, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("from epochline import KafkaSource, epoch_dag\nKafkaSource(subject='a')\n")

    code, out, err = call("migrate")

    assert code == 2
    assert "people: made people" in out
    assert f"broken declaration: {tmp_path / 'broken.py'}:2: " in err
    code, out, err = call("janitor")
    assert (code, out) == (1, "epochline_postgres: 0 left-over stagings dropped\n")
    assert f"broken declaration: {tmp_path / 'broken.py'}:2: " in err


def test_a_table_that_another_program_made_is_refused_by_migrate_and_plan_and_stops_no_other_pipeline(
    call: Call, postgres_dsn: str, tmp_path: Path
) -> None:
    """The second record of a key would have stopped the pipeline, long after the first rows were written."""
    query(postgres_dsn, f"CREATE TABLE public.people (id bigint PRIMARY KEY{LINEAGE})")
    (tmp_path / "others.py").write_text(declaration("others").replace("people", "others"))

    code, out, err = call("migrate")
    found = json.loads(call("migrate", "--json")[1])

    assert code == 1
    assert "others: made others" in out
    assert "refused: people: target people has a unique key that the declaration does not know: people_pkey (id)" in err
    assert list(found["refused"]) == ["people"]
    assert "leave out `columns`, which declares a table that exists" in call.refusal("plan", "people")


def test_an_enabled_example_has_its_tables_in_a_schema_of_their_own_and_nothing_is_made_before(
    call: Call, postgres_dsn: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "dags", project / "dags")
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(project))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(project / "dags"))
    monkeypatch.syspath_prepend(ROOT / "spark_jobs")

    call.shown("migrate")
    assert query(postgres_dsn, "SELECT to_regnamespace('examples')") == [(None,)]

    out = call.shown("examples", "enable", "word_count", "cdc_orders")

    assert "next: feed topic word_count; `epochline plan word_count`" in out
    rights = (
        "SELECT tablename, has_schema_privilege('epochline_owner', 'examples', 'USAGE')"
        " AND has_table_privilege('epochline_owner', format('examples.%I', tablename), 'SELECT, INSERT')"
        " FROM pg_tables WHERE schemaname = 'examples' ORDER BY tablename"
    )
    assert query(postgres_dsn, rights) == [("orders", True), ("t_wordcount", True), ("word_count", True)]
    assert query(postgres_dsn, "SELECT to_regclass('public.orders')") == [(None,)]


def test_plan_and_lag_show_what_is_not_committed_and_change_nothing(call: Call, fed: str, postgres_dsn: str) -> None:
    before = query(postgres_dsn, "SELECT * FROM epochline.pipeline")

    planned, rows = call.json("plan", "people"), call.json("lag", "people")

    assert [(p["start"], p["until"], p["backlog_after"]) for p in planned["partitions"]] == [(0, 50, 25), (0, 50, 25)]
    assert "would read 10 offsets and leave 140" in call.shown("plan", "people", "--max-records", 10)
    assert [(row["head"], row["end"], row["lag"]) for row in rows] == [(0, 75, 75), (0, 75, 75)]
    assert [call("lag", "--fail-above", most)[0] for most in (150, 149)] == [0, 3]
    assert "people: 150 records behind" in call.shown("lag")
    assert query(postgres_dsn, "SELECT * FROM epochline.pipeline") == before
    assert query(postgres_dsn, "SELECT count(*) FROM epochline.committed_range") == [(0,)]


def test_plan_shows_an_unfinished_epoch_and_what_was_changed(
    call: Call, planned: Epoch, tmp_path: Path, people_topic: str
) -> None:
    declare(tmp_path, people_topic, id="bigint", name="text")

    code, out, err = call("plan", "people")

    assert code == 1  # the table has no such column, and a plan would be refused for it
    assert "sinks.people.columns.name" in out
    assert "needs migration" in out
    assert "name" in err

    declare(tmp_path, people_topic)
    assert "epoch 1 of people is PLANNED" in call("plan", "people")[1]


@pytest.mark.parametrize("unfit", ["a topic of a sink", "a column of a target", "a right", "connections"])
def test_plan_refuses_what_the_plan_of_a_run_refuses_and_writes_nothing(
    unfit: str, call: Call, fed: str, postgres_dsn: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """One rule for both: the command says what the run would say, and does not advise to run itself again."""
    writers = None
    if unfit == "a topic of a sink":
        declare(tmp_path, fed, table='), KafkaTopic(topic="absent-out", value=Json(columns={"id": "bigint"})')
        call.shown("migrate")
    elif unfit == "a column of a target":
        declare(tmp_path, fed, id="bigint", name="text")
    elif unfit == "a right":
        query(postgres_dsn, "REVOKE INSERT ON people FROM CURRENT_USER, epochline_owner")
    else:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[9000]"}')
        writers = 9000

    code, _, err = call("plan", "people")

    assert query(postgres_dsn, "SELECT count(*) FROM epochline.pipeline") == [(0,)]
    declared = discovery.find("people")
    with pytest.raises(EpochlineError) as refused:
        plan(adapters().ledger(declared), adapters().offsets(declared), declared, RUN, PlanRequest(writers=writers))
    said = getattr(refused.value, "said", str(refused.value))
    assert (code, err) == (refused.value.exit_code, f"error: {' '.join(said.split())}\n")


def test_several_names_are_planned_checked_and_migrated_and_a_failing_one_hides_no_other(
    call: Call, fed: str, postgres_dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "others.py").write_text(declaration("others").replace("people", "others"))

    migrated = call("migrate", "nobody", "others")
    code, out, err = call("plan", "nobody", "others", "people")
    validated = call("validate", "people", "nobody", "others")
    listed = json.loads(call("plan", "others", "people", "--json")[1])

    assert (migrated[0], "others: made others" in migrated[1], "people" in migrated[1]) == (2, True, False)
    assert "'nobody'" in migrated[2]
    assert code == 2
    assert "the next epoch of people would read 100 offsets and leave 50" in out
    assert out.splitlines()[-1].startswith("people: checked the declaration, table people, source ")
    assert ["'nobody'" in line for line in err.splitlines()] == [True, False]  # Kafka has no topic others
    assert [one["pipeline"] for one in listed] == ["people"]
    assert validated[0] == 1
    assert "no valid pipeline 'nobody'" in validated[1]
    assert "valid: people, others\n" in validated[1]
    assert validated[1].endswith("compared with PostgreSQL: the tables of people, others\n")


def test_the_ledger_shows_epochs_and_everything_of_one(call: Call, planned: Epoch) -> None:
    epochs, one = call.json("ledger"), call.json("ledger", "people", "--epoch", 1)
    out = call.shown("ledger", "people", "--epoch", 1)

    assert [(e["pipeline"], e["epoch_id"], e["state"], e["offsets"]) for e in epochs] == [("people", 1, "PLANNED", 100)]
    assert [(r["start_offset"], r["until_offset"]) for r in one["ranges"]] == [(0, 50), (0, 50)]
    assert [(a["attempt"], a["state"], a["fenced_writes"]) for a in one["attempts"]] == [(1, "RUNNING", 0)]
    assert one["start_seconds"] > 0
    assert one["settings"]["record_limit"] == {"value": 100, "from": "declaration"}
    for said in ("[0, 50)", "phases: plan ", "settings: record_limit 100 (declaration)"):
        assert said in out
    assert (one["longest_latency_seconds"], one["shortest_latency_seconds"]) == (None, None)
    assert call("ledger", "people", "--epoch", 9)[0] == 1


def test_the_ledger_of_an_unknown_pipeline_is_refused_with_the_name_that_was_meant(call: Call, fed: str) -> None:
    assert "knows a pipeline 'peple'. Did you mean people? Known: people." in call.refusal("ledger", "peple")
    assert call("ledger", "people") == (0, "the ledger holds no epoch yet\n", "")


def test_an_operator_aborts_an_epoch_and_its_range_is_free_again(
    call: Call, planned: Epoch, postgres_dsn: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    code, out, _ = call("abort", "people", 1, "--reason", "perhaps")
    assert code == 1
    assert "nothing was changed" in out
    assert query(postgres_dsn, "SELECT state FROM epochline.epochs") == [("PLANNED",)]

    out = call.shown("abort", "people", 1, "--reason", "wrong file", "--yes")

    assert "is PLANNED, planned by run manual__1 of people: 100 offsets, attempt 1, 0 rows staged" in out
    assert "was aborted before" in call.shown("abort", "people", 1, "--reason", "once more", "--yes")
    ((state, error),) = query(postgres_dsn, "SELECT state, error FROM epochline.epochs")
    assert (state, str(error).endswith(": wrong file")) == ("ABORTED", True)
    assert query(postgres_dsn, "SELECT count(*) FROM pg_tables WHERE schemaname = 'epochline_staging'") == [(0,)]
    assert [(p["start"], p["until"]) for p in call.json("plan", "people")["partitions"]] == [(0, 50), (0, 50)]


SHOWN = {
    "timestamptz '9999-12-31 23:59:59-14'": "10000-01-01 13:59:59+00", "date '0044-03-15 BC'": "0044-03-15 BC",
    "timestamp 'infinity'": "infinity", "time '24:00'": "24:00:00", "interval '1 mon'": "1 mon",
    "interval '-1 year 2 days 03:00'": "-1 years +2 days 03:00:00",
    "ARRAY[date '0044-03-15 BC', 'infinity']": '{"0044-03-15 BC",infinity}', "ARRAY[interval '1 mon']": '{"1 mon"}',
    "numeric '0.0000001'": "0.0000001", "float8 'Infinity'": "Infinity", "true": "true", "bytea '\\x00ff'": "\\x00ff",
    "ARRAY[1.50, NULL]": "{1.50,NULL}", "jsonb '{\"a\": 1.50}'": '{"a": 1.50}',
}  # fmt: skip


def test_sql_shows_each_value_as_psql_does_and_a_query_may_begin_with_a_comment(call: Call) -> None:
    asked = ", ".join(f"{value} AS v{at}" for at, value in enumerate(SHOWN))

    values = call.shown("sql", f"-- a comment; with -c, or =\nSELECT {asked}", "--csv")
    table = call.shown("sql", f"/* -- */ SELECT {asked}")
    told = call.json("sql", f"--SELECT\nSELECT {asked}")

    assert list(csv.reader(io.StringIO(values)))[1] == list(SHOWN.values())
    assert all(shown in table for shown in SHOWN.values())
    texts = [value for at, value in enumerate(SHOWN.values()) if at not in (8, 10, 12, 13)]
    assert [told[f"v{at}"] for at in range(len(SHOWN)) if at not in (8, 10, 12, 13)] == texts
    assert (told["v10"], told["v13"]) == (True, {"a": 1.5})
    assert call("sql", "--jsn")[0] == 2


def test_sql_changes_nothing_unless_it_may_write_and_an_error_is_one_paragraph(call: Call, postgres_dsn: str) -> None:
    assert "read-only transaction" in call.refusal("sql", "CREATE TABLE mine (id int)")
    assert call("sql", "CREATE TABLE mine (id int)", "--write") == (0, "done\n", "")
    assert query(postgres_dsn, "SELECT count(*) FROM mine") == [(0,)]

    err = call.refusal("sql", "SELECT nothing FROM nowhere")

    assert 'relation "nowhere" does not exist' in err
    assert err.count("\n") == 1


def test_psql_is_opened_read_only_and_shows_no_password(call: Call, postgres_dsn: str, monkeypatch: Patch) -> None:
    opened: list[tuple[str, Sequence[str], Mapping[str, str]]] = []
    monkeypatch.setattr("os.execve", lambda *given: opened.append(given))

    call.shown("sql")

    ((program, arguments, environment),) = opened
    parts = parse_dsn(postgres_dsn)
    assert program.endswith("psql")
    assert arguments == [program]
    assert (environment["PGDATABASE"], environment["PGPASSWORD"]) == (parts["dbname"], parts["password"])
    assert "read_only=on" in environment["PGOPTIONS"]


def test_a_ledger_that_is_missing_is_named_with_its_remedy(call: Call, stack: Stack, monkeypatch: Patch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_POSTGRES", as_connection(stack.postgres.dsn("postgres")))

    assert "epochline migrate" in call.refusal("ledger")


def test_a_pipeline_is_listed_with_its_lag_and_its_state(call: Call, planned: Epoch) -> None:
    (row,) = call.json("list")
    assert (row["pipeline"], row["state"], row["lag"], row["last_commit"]) == ("people", "staging", 150, None)

    call("pause", "people", "--reason", "the disk is full", "--yes")

    (row,) = call.json("list")
    assert (row["state"], "the disk is full" in row["reason"]) == ("paused", True)


def test_the_lag_is_unknown_while_kafka_is_away(call: Call, fed: str, monkeypatch: Patch) -> None:
    connect_to(monkeypatch, kafka="127.0.0.1:1")

    code, out, err = call("list")
    planned = call.refusal("plan", "people")

    assert (code, err) == (0, "")
    assert "unknown" in out
    assert not [line for line in out.splitlines() if line != line.rstrip()]
    assert len(planned.splitlines()) == 1, "a client library logged to the terminal, or a cause was said twice"


Between = Callable[[Callable[[], object]], None]


@pytest.fixture
def between(monkeypatch: Patch) -> Iterator[Between]:
    """Something happens between the first look and the second, and Ctrl-C is pressed after the second.

    A shell starts its background processes with SIGINT ignored, and Python then leaves it ignored.
    """

    def happens(change: Callable[[], object]) -> None:
        steps: Iterator[Callable[[], object]] = iter([change, partial(signal.raise_signal, signal.SIGINT)])
        monkeypatch.setattr("epochline.cli.options.sleep", lambda _: next(steps)())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield happens
    signal.signal(signal.SIGINT, before)


def test_the_ledger_is_shown_until_ctrl_c(call: Call, planned: Epoch, postgres_dsn: str, between: Between) -> None:
    between(lambda: query(postgres_dsn, "UPDATE epochline.epoch SET error = 'the disk is full'"))

    code, out, err = call("ledger", "people", "--follow")

    assert (code, err) == (130, "")
    assert out.count("PLANNED") == 2
    assert out.count("epoch 1 of people: the disk is full") == 1
    assert out.count(" UTC\n") == 2


def test_the_lag_is_shown_until_ctrl_c(call: Call, fed: str, kafka_bootstrap: str, between: Between) -> None:
    between(lambda: produce(kafka_bootstrap, fed, [b'{"id": 1}'], partition=0))

    code, out, err = call("lag", "people", "--follow")

    assert (code, err) == (130, "")
    assert [line for line in out.splitlines() if line.startswith("people: ")] == [
        "people: 150 records behind", "people: 151 records behind"
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["ledger --json", "lag --json", "lag --fail-above 3"])
def test_an_option_that_needs_one_answer_is_refused(call: Call, command: str) -> None:
    err = call.refusal(*command.split(), "--follow", code=2)

    assert "--follow shows answers until Ctrl-C" in " ".join(err.replace("│", " ").split())


def test_the_next_commands_bring_the_sample_record_as_far_as_the_preview(
    on_servers: Call, postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.begun")
    (tmp_path / "dags").mkdir()
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(tmp_path))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path / "dags"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    out = on_servers.shown("init", "begun", "--topic", topic_name, "--columns", "id bigint, at timestamptz")
    _, *commands, _ = [shlex.split(line) for line in out.split("next:\n")[1].splitlines()]
    shown = [on_servers.shown(*command[1:]) for command in commands]

    assert [command[1] for command in commands] == ["validate", "migrate", "feed", "preview"]
    assert "begun: 1 record read, 1 passed, 0 skipped, 0 refused; nothing was written" in shown[-1]
    assert query(postgres_dsn, "SELECT count(*) FROM begun") == [(0,)]
