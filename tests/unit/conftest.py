"""Fixtures that several unit tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epochline.local.home import Home


@pytest.fixture
def no_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find neither a stack nor a connection."""
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """The folders of a stack that was never started."""
    home = Home(tmp_path / "home")
    home.create()
    return home
