"""Shipped examples are off until somebody enables them, share no table with a user's, and their programs name them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from epochline.config import discovery
from epochline.config.examples import enabled_examples, example_files, switch_examples
from epochline.declare.names import split_table
from epochline_examples import programs
from epochline_examples.programs import PROGRAMS, Program, Read, Send
from tests.commands import Call, caller
from tests.declared import find_all
from tests.declaring import declare

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.stem for path in (ROOT / "dags" / "examples").glob("*.py"))
DERIVED = "ip_count_sink_open"
"""The open windows of a topic: their table is named after the topic, which has no schema."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_stack: None) -> Path:
    """A project with the shipped DAGs folder, and every example off, whatever this checkout has enabled."""
    shutil.copytree(ROOT / "dags", tmp_path / "dags")
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(tmp_path))
    monkeypatch.delenv("EPOCHLINE_DAGS", raising=False)
    monkeypatch.syspath_prepend(ROOT / "spark_jobs")
    switch_examples(SHIPPED, on=False)
    return tmp_path


@pytest.fixture
def called(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys)


def test_no_example_is_enabled_in_a_fresh_checkout(project: Path) -> None:
    shown = subprocess.run(["git", "show", "HEAD:dags/.airflowignore"], cwd=ROOT, capture_output=True, check=True)
    (project / "dags" / ".airflowignore").write_bytes(shown.stdout)

    assert list(example_files()) == SHIPPED
    assert enabled_examples() == set()
    assert list(discovery.look().pipelines) == ["access_log"]


def test_the_tables_of_examples_are_in_a_schema_of_their_own() -> None:
    declared = find_all(ROOT / "dags" / "examples").values()

    tables = [sink.table for one in declared for sink in (*one.targets, *one.states)]

    assert len(tables) > 10
    assert [table for table in tables if split_table(table)[0] != discovery.EXAMPLES] == [DERIVED]


def test_an_enabled_example_is_declared_until_it_is_disabled(called: Call, project: Path) -> None:
    code, out, _ = called("examples", "enable", "word_count")

    assert code == 0
    assert "examples/word_count.py" not in lines(project)
    assert "enabled: word_count" in out
    assert "`epochline up` and `epochline migrate` make them" in out
    assert list(discovery.look().pipelines) == ["access_log", "word_count"]
    assert enabled_examples() == {"word_count"}

    assert called("examples", "disable", "word_count")[0] == 0
    assert list(discovery.look().pipelines) == ["access_log"]
    assert lines(project)[-1] == "examples/word_count.py"


def test_an_example_whose_table_a_pipeline_of_the_project_names_is_refused_with_both_files(
    called: Call, project: Path
) -> None:
    declare(project / "dags", "own", "examples.orders")

    called("examples", "enable", "restart_demo")
    code, _, err = called("examples", "enable", "cdc_orders")

    assert "'cdc_orders' and 'own' both name the table examples.orders" in err
    assert called("plan", "own")[0] == 2
    assert code == 1


def test_the_tables_of_the_tutorial_are_in_no_example() -> None:
    """The tutorial's append pipeline once wrote into the upsert table of an example, until a key repeated."""
    examples = find_all(ROOT / "dags" / "examples").values()
    tables = {split_table(sink.table) for one in examples for sink in (*one.targets, *one.states)}

    named = re.findall(r'PostgresTable\(\s*table="(\w+)"', (ROOT / "docs" / "tutorial.md").read_text())

    assert {"orders", "money_per_customer"} <= set(named)
    assert {split_table(table) for table in named} & tables == set()


def test_without_a_name_every_example_is_enabled_or_disabled(called: Call) -> None:
    assert called("examples", "enable")[0] == 0
    assert enabled_examples() == set(SHIPPED)

    assert called("examples", "disable")[0] == 0
    assert enabled_examples() == set()


def test_the_list_says_which_examples_are_enabled(called: Call) -> None:
    called("examples", "enable", "cdc_orders")

    listed = {line.split()[1]: line.split()[2] for line in called("examples", "list")[1].splitlines()[1:]}

    assert listed.pop("cdc_orders") == "yes"
    assert set(listed.values()) == {"no"}
    assert {"cdc_orders", *listed} == set(SHIPPED)


def test_an_unknown_example_is_wrong_use_and_changes_nothing(called: Call, project: Path) -> None:
    code, _, err = called("examples", "enable", "word_count", "nothing")

    assert code == 2
    assert "there is no example nothing" in " ".join(err.split())
    assert enabled_examples() == set()


@pytest.mark.parametrize("command", ["plan", "run", "lag", "publish", "validate"])
def test_a_command_for_an_example_that_is_off_names_the_command_that_enables_it(called: Call, command: str) -> None:
    code, out, err = called(command, "pass_through_at_least_once")

    assert code != 0
    assert "Run `epochline examples enable pass_through`." in out + err


def test_a_file_that_another_line_leaves_out_is_not_said_to_be_enabled(called: Call, project: Path) -> None:
    ignored = project / "dags" / ".airflowignore"
    ignored.write_text(f"{ignored.read_text()}examples/\n")

    code, _, err = called("examples", "enable", "word_count")

    assert code == 1
    assert "still leaves word_count out" in err


def test_a_file_of_ones_own_that_is_left_out_is_named(called: Call, project: Path) -> None:
    (project / "dags" / "drafts").mkdir()
    (project / "dags" / "access_log.py").rename(project / "dags" / "drafts" / "access_log.py")
    (project / "dags" / ".airflowignore").write_text("drafts/  # not yet\n")

    code, _, err = called("plan", "access_log")

    assert code == 2
    assert f"declared in {project / 'dags' / 'drafts' / 'access_log.py'}, which an .airflowignore leaves out" in err


def lines(project: Path) -> list[str]:
    return (project / "dags" / ".airflowignore").read_text().splitlines()


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda one: one.name)
def test_a_program_names_what_is_declared(program: Program) -> None:
    """X1: its topic is its pipeline's, what it reads is written by that, and each run is of a pipeline that is there."""
    declared = find_all(ROOT / "dags" / "examples")
    pipeline = declared[program.pipeline]

    sent_to = {step.to or program.topic for step in program.steps if isinstance(step, Send)}
    assert {program.topic, *sent_to} - {None} == {
        topic for one in pipeline.kafka_sources.values() for topic in one.topics
    }
    read = {step.topic for step in program.steps if isinstance(step, Read)}
    assert read <= {sink.topic for sink in pipeline.topics}
    run = {
        step.command.split()[1]
        for step in program.steps
        if isinstance(step, programs.Call) and step.command[:4] == "run "
    }
    assert program.pipeline in run
    assert run <= set(declared)


def test_the_count_per_address_goes_from_the_source_topic_to_the_sink_topic() -> None:
    """X19."""
    pipeline = find_all(ROOT / "dags" / "examples")["ip_count_topic"]

    assert pipeline.source.topics == ("ip_count_source",)
    assert [sink.topic for sink in pipeline.topics] == ["ip_count_sink"]
