"""Fixtures that several unit tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochline.local.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """The folders of a stack that was never started."""
    home = Home(tmp_path / "home")
    home.create()
    return home
