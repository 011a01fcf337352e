"""Which files of a DAGs folder Airflow reads, and which declarations it refuses: as its DAG processor reads the folder."""

import os
import shutil
from pathlib import Path

import pytest

from epochline.config import discovery
from epochline.config.examples import switch_examples
from tests.airflow.interpreter import answer_without_airflow
from tests.commands import caller
from tests.declared import find_all
from tests.declaring import DAG, declare

ROOT = Path(__file__).parents[2]

READ = """
import json, os, warnings; warnings.simplefilter("ignore")
from airflow.dag_processing.dagbag import BundleDagBag
folder = os.environ["BUNDLE"]
bag = BundleDagBag(folder, bundle_path=folder, bundle_name="dags")
print("ANSWER" + json.dumps({"dags": sorted(bag.dags), "refused": bag.import_errors}))
"""
TASK = """
import os, runpy, sys, warnings; warnings.simplefilter("ignore")
from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager as parsing
with parsing(dag_id="a_new", task_id="commit_epoch"):
    print('ANSWER{"dag": "%s"}' % runpy.run_path(sys.argv[1])["dag"].dag_id)
"""


def test_validate_warns_of_exactly_the_files_that_airflow_skips_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "no stack"))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(folder))
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    epochline = caller(monkeypatch, capsys)
    epochline("init", "made", "--columns", "id bigint")
    declare(folder, "seen", "rows")
    (folder / "unseen.py").write_text(DAG.format(name="unseen", table="others").replace("Airflow", "It"))

    code, out, err = epochline("validate")
    of_another = epochline("validate", "seen", "--json")
    dags, refused = read(folder, tmp_path)

    assert (code, out.splitlines()[0]) == (0, "valid: made, seen, unseen")
    [warning] = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert f'{folder / "unseen.py"} does not contain the word "airflow"' in warning
    assert "[core] dag_discovery_safe_mode" in warning
    assert (of_another[0], "warning: " in of_another[2]) == (0, False)
    assert (dags, refused) == (["made", "seen"], {})


def read(folder: Path, home: Path, *, configured: Path | None = None) -> tuple[list[str], dict[str, str]]:
    """The ids of the DAGs in the folder, and by file name why Airflow could not read a file.

    The folder is a DAG bundle, and Airflow's configured DAGs folder is another one.
    """
    found = answer_without_airflow(
        READ, home=home, BUNDLE=str(folder), AIRFLOW__CORE__DAGS_FOLDER=str(configured or folder)
    )
    return found["dags"], {Path(path).name: why for path, why in found["refused"].items()}


def test_airflow_and_the_command_line_agree_about_the_examples_that_are_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "dags", tmp_path / "dags")
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(tmp_path))
    monkeypatch.syspath_prepend(ROOT / "spark_jobs")
    shipped = set(find_all(ROOT / "dags" / discovery.EXAMPLES))

    switch_examples(sorted(path.stem for path in (ROOT / "dags" / discovery.EXAMPLES).glob("*.py")), on=False)

    before, _ = read(tmp_path / "dags", tmp_path)
    switch_examples(["pass_through", "epoch_summaries"], on=True)
    after, refused = read(tmp_path / "dags", tmp_path)

    assert shipped & set(before) == set()
    assert {"access_log", "epochline_janitor"} <= set(before)
    assert set(after) - set(before) == {"pass_through", "pass_through_at_least_once", "epoch_summaries"}
    assert {*discovery.look().pipelines} == {"access_log", "pass_through", "pass_through_at_least_once"}
    assert refused == {}


def folder_of_two(tmp_path: Path) -> Path:
    """A DAGs folder with two declarations of one table, of which z_old.py is the older file."""
    folder = tmp_path / "dags"
    folder.mkdir()
    declare(folder, "z_old", "rows")
    declare(folder, "a_new", "rows")
    os.utime(folder / "z_old.py", (1, 1))
    return folder


@pytest.mark.parametrize("configured", [None, Path("/nowhere")], ids=["the dags folder", "another bundle"])
def test_a_new_file_that_names_the_table_of_another_is_an_import_error_and_the_old_one_goes_on(
    tmp_path: Path, configured: Path | None
) -> None:
    folder = folder_of_two(tmp_path)
    (folder / "twice.py").write_text(
        DAG.format(name="first", table="own") + DAG.format(name="second", table="own").replace("dag =", "other =")
    )

    dags, refused = read(folder, tmp_path, configured=configured)

    assert dags == ["z_old"]
    assert set(refused) == {"a_new.py", "twice.py"}
    assert "pipelines 'z_old' and 'a_new' both name the table rows" in refused["a_new.py"]
    assert "'first' and 'second' both name the table own" in refused["twice.py"]


def test_a_task_runs_although_its_file_would_be_refused_now(tmp_path: Path) -> None:
    """INV-6: an epoch that is sealed is not lost because somebody adds a file."""
    folder = folder_of_two(tmp_path)

    task = answer_without_airflow(TASK, folder / "a_new.py", home=tmp_path, AIRFLOW__CORE__DAGS_FOLDER=str(folder))

    assert task == {"dag": "a_new"}
