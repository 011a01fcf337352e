"""Where the command line, the stack and the Spark job look for a project's files. tests/integration/test_wheel.py shows
the same without a checkout."""

import os
from pathlib import Path

import pytest

from epochline.config import places
from epochline.local import credentials
from epochline.local.stack import Stack
from epochline.spark import main
from tests.commands import python

ROOT = Path(__file__).parents[2]
NAMED = ("EPOCHLINE_PROJECT", "EPOCHLINE_DAGS", "EPOCHLINE_HOME")

IMPORT_STATE = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))  # as Python does for the file of a program
from epochline.spark import main
main._import_from_the_project()
import state
print(state.__file__)
"""


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMED:
        monkeypatch.delenv(name, raising=False)


def test_a_checkout_is_its_own_project_from_any_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    assert places.checkout() == places.project_folder() == ROOT
    assert places.dags_folder() == ROOT / "dags"
    assert places.home_folder() == ROOT / ".epochline"


def test_variables_name_the_folders_and_a_project_of_a_checkout_shares_its_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EPOCHLINE_PROJECT", "mine")
    assert places.dags_folder() == tmp_path / "mine" / "dags"
    assert places.home_folder() == ROOT / ".epochline"

    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path / "other"))
    monkeypatch.setenv("EPOCHLINE_HOME", "~/here")
    assert places.dags_folder() == tmp_path / "other"
    assert places.home_folder() == Path.home() / "here"


@pytest.mark.parametrize("variable", ["EPOCHLINE_PROJECT", "EPOCHLINE_DAGS"])
def test_the_stacks_airflow_reads_the_dags_folder_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    stack = Stack(tmp_path / "home")
    stack.home.create()
    credentials.ensure(stack.home)
    stack._ports.settle(set())

    environment = stack.airflow.environment()

    assert environment["AIRFLOW__CORE__DAGS_FOLDER"] == str(places.dags_folder())
    assert stack.status().airflow.dags_folder == places.dags_folder()
    assert environment["EPOCHLINE_PROJECT"] == str(places.project_folder())
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT / "include"), str(places.functions_folder())]


def test_the_job_imports_functions_of_the_project_and_none_of_its_own_modules_by_a_bare_name(tmp_path: Path) -> None:
    """Python puts the folder of a program's file on the path; the package's has a module ``state`` too."""
    own = tmp_path / "spark_jobs" / "state.py"
    own.parent.mkdir()
    own.touch()
    variables = {"EPOCHLINE_PROJECT": str(tmp_path), "PYTHONPATH": str(ROOT / "include")}

    assert python("-c", IMPORT_STATE, main.__file__, variables=variables).stdout == f"{own}\n"


@pytest.mark.parametrize(
    "program", [[main.__file__], ["-m", main.__name__], [str(ROOT / "spark_jobs" / "pre_commit.py")]]
)
def test_the_job_is_a_file_and_a_module(program: list[str]) -> None:
    assert "--attempt" in python(*program, "--help", variables={"PYTHONPATH": str(ROOT / "include")}).stdout
