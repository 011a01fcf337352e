"""Fixtures that several unit tests use."""

import os
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from epochline.local.home import Home
from tests.commands import Call, caller


@pytest.fixture
def no_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find neither a stack nor a connection."""
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    for name in [name for name in os.environ if name.startswith(("AIRFLOW_CONN_", "EPOCHLINE_AIRFLOW_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the declarations that commands find; it is empty."""
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))
    return tmp_path


@pytest.fixture
def called(no_stack: None, dags: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls commands that find the declarations of `dags`, and neither a stack nor a connection."""
    return caller(monkeypatch, capsys)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes a module ``user_code`` of functions that a declaration can name."""

    def make(**given: Callable[..., Any]) -> None:
        code = tmp_path / "user_code.py"
        code.write_text("\n".join(f"def {name}(batch): ..." for name in given))
        spec = spec_from_file_location("user_code", code)
        assert spec is not None
        module = module_from_spec(spec)
        vars(module).update(given)
        monkeypatch.setitem(sys.modules, "user_code", module)

    return make
