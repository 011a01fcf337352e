"""Two declarations of one table, and broken ones, are reported with their files, and hide no other pipeline."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from epochline import Pipeline
from epochline.cli import declarations
from epochline.config import discovery, places
from epochline.config.shared_tables import refuse_newer_file, shared_tables
from epochline.errors import DeclarationError, EpochlineError
from epochline.local.stack import Stack
from tests.commands import Call
from tests.declaring import DAG, declare


def test_a_table_of_two_pipelines_is_reported_with_both_files(dags: Path) -> None:
    declare(dags, "one", "rows")
    declare(dags, "two", "public.rows")

    (error,) = shared_tables(discovery.look())

    assert f"{dags / 'one.py'}:3" in str(error)
    assert f"{dags / 'two.py'}:3" in str(error)
    assert "'one' and 'two'" in str(error)


def test_the_pipelines_of_this_project_share_no_table() -> None:
    assert shared_tables(discovery.look()) == []


def test_the_examples_share_no_table_with_each_other_or_with_this_project() -> None:
    examples = discovery.look(places.dags_folder() / discovery.EXAMPLES)
    own = discovery.look()

    everything = discovery.Declared(
        pipelines={**own.pipelines, **examples.pipelines}, broken=(), places={**own.places, **examples.places}
    )
    assert shared_tables(everything) == []


@pytest.mark.parametrize(
    ("table", "head"),
    [('"ro" "ws"', ""), ('"rows"', "from airflow.sdk import DAG\n")],
    ids=["names it in no text", "imports Airflow"],
)
def test_a_file_that_does_not_name_the_table_or_that_imports_airflow_is_not_read(
    dags: Path, table: str, head: str
) -> None:
    """Airflow would take the DAGs of a file that is read on the way for those of the file that it reads."""
    declare(dags, "new", "rows")
    (dags / "old.py").write_text(head + DAG.format(name="old", table="TABLE").replace('"TABLE"', table))
    os.utime(dags / "old.py", (1, 1))
    new = discovery.declared_in([dags / "new.py"]).pipelines["new"]

    refuse_newer_file(new, dags / "new.py", dags)

    assert len(shared_tables(discovery.look())) == 1


def test_migrate_refuses_before_it_asks_a_server(dags: Path) -> None:
    declare(dags, "one", "rows")
    declare(dags, "two", "rows")

    with pytest.raises(DeclarationError, match="both name the table rows"):
        declarations.migrate()


BROKEN = {
    "a wrong field": ("from epochline import KafkaSource, epoch_dag\n\nKafkaSource(subject='a')\n", 3),
    "no Python": ("epoch_dag = 1\nepoch_dag(\n", 2),
    "a missing import": ("from epochline import epoch_dag\nimport no_such_module_at_all\n", 2),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_with_its_line_and_hides_no_other(tmp_path: Path, kind: str) -> None:
    text, line = BROKEN[kind]
    (tmp_path / "a_broken.py").write_text(text)
    declare(tmp_path, "good", "good")

    declared = discovery.look(tmp_path)

    assert list(declared.pipelines) == ["good"]
    assert [str(error).split(": ")[0] for error in declared.broken] == [f"{tmp_path / 'a_broken.py'}:{line}"]
    assert discovery.find("good", tmp_path).name == "good"
    with pytest.raises(DeclarationError, match=f"declared: good. Broken: .*a_broken.py:{line}: "):
        discovery.find("a_broken", tmp_path)


def made(found: Mapping[str, Pipeline]) -> tuple[dict[str, list[str]], dict[str, EpochlineError]]:
    return {name: [name] for name in found}, {}


def declare_one_table_twice(dags: Path) -> str:
    declare(dags, "one", "rows")
    declare(dags, "two", "rows")
    return "pipelines 'one' and 'two' both name the table rows"


def declare_wrongly(dags: Path) -> str:
    (dags / "broken.py").write_text(BROKEN["a wrong field"][0])
    return f"broken declaration: {dags / 'broken.py'}:3: "


@pytest.mark.parametrize("declare_what", [declare_one_table_twice, declare_wrongly])
def test_up_names_what_is_refused_and_makes_the_targets_of_the_others(
    dags: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], declare_what: Callable[[Path], str]
) -> None:
    refused = declare_what(dags)
    declare(dags, "good", "good")
    monkeypatch.setattr(declarations, "create_targets", made)
    said: list[str] = []

    declarations.create_declared(said.append)

    assert said == ["good: made good"]
    assert refused in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "expected"),
    [(("status",), 3), (("up", "kafka"), 0), (("up", "spark"), 0)],
    ids=["status", "up kafka", "up spark"],
)
def test_a_command_on_the_stack_names_a_broken_declaration(
    called: Call, command: tuple[str, ...], expected: int, dags: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = declare_wrongly(dags)
    monkeypatch.setattr(Stack, "up", lambda stack, parts, **options: None)

    code, _, err = called(*command)

    assert code == expected
    assert broken in err


def test_a_folder_of_declarations_that_is_missing_does_not_hide_the_stack(
    called: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path / "none"))

    code, out, err = called("status")

    assert (code, "stopped" in out) == (3, True)
    assert f"warning: there is no folder {tmp_path / 'none'}" in err
