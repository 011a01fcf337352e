"""Two declarations that name one table are reported with both pipelines and files."""

import os
from pathlib import Path

import pytest

from epochline.cli.declarations import migrate
from epochline.config import discovery
from epochline.config.shared_tables import refuse_newer_file, shared_tables
from epochline.errors import DeclarationError
from tests.declaring import DAG, declare


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))
    return tmp_path


def test_a_table_of_two_pipelines_is_reported_with_both_files(folder: Path) -> None:
    declare(folder, "one", "rows")
    declare(folder, "two", "public.rows")

    (error,) = shared_tables(discovery.look())

    assert f"{folder / 'one.py'}:3" in str(error)
    assert f"{folder / 'two.py'}:3" in str(error)
    assert "'one' and 'two'" in str(error)


def test_the_pipelines_of_this_project_share_no_table() -> None:
    assert shared_tables(discovery.look()) == []


def test_the_examples_share_no_table_with_each_other_or_with_this_project() -> None:
    examples = discovery.look(discovery.dags_folder() / discovery.EXAMPLES)
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
    folder: Path, table: str, head: str
) -> None:
    """Airflow would take the DAGs of a file that is read on the way for those of the file that it reads."""
    declare(folder, "new", "rows")
    (folder / "old.py").write_text(head + DAG.format(name="old", table="TABLE").replace('"TABLE"', table))
    os.utime(folder / "old.py", (1, 1))
    new = discovery.declared_in([folder / "new.py"]).pipelines["new"]

    refuse_newer_file(new, folder / "new.py", folder)

    assert len(shared_tables(discovery.look())) == 1


def test_migrate_refuses_before_it_asks_a_server(folder: Path) -> None:
    declare(folder, "one", "rows")
    declare(folder, "two", "rows")

    with pytest.raises(DeclarationError, match="both name the table rows"):
        migrate()
