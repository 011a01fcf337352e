"""The library stays a house that one can walk through: few rooms, few arrows between them, no circle."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rooms import Rooms, rooms_of

MOST_ROOMS = 30
MOST_ARROWS = 160

Made = Callable[[dict[str, str]], Rooms]

_packages = itertools.count(1)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Count the rooms of a package that is made of the given files; ``{p}`` stands for its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def made(files: dict[str, str]) -> Rooms:
        package = f"rooms_of_a_test_{next(_packages)}"
        for path, text in {"__init__.py": "", **files}.items():
            file = tmp_path / package / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("{p}", package))
        return rooms_of(package)

    return made


def test_the_library_has_few_rooms_few_arrows_and_no_circle() -> None:
    rooms = rooms_of("epochline")

    assert MOST_ROOMS - 8 < len(rooms.imports) <= MOST_ROOMS, str(rooms)
    assert MOST_ARROWS - 40 < rooms.arrows <= MOST_ARROWS, str(rooms)
    assert rooms.circles == ()


@pytest.mark.parametrize(
    "text",
    [
        "import {p}.b.one",
        "from {p}.b.one import X",
        "from .b import one",
        "def f():\n    from {p}.b import one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {p}.b.one import X",
    ],
)
def test_every_kind_of_import_is_an_arrow(made: Made, text: str) -> None:
    rooms = made({"a.py": text, "b/__init__.py": "", "b/one.py": "X = 1"})

    assert rooms.imports == {"a": {"b"}, "b": frozenset()}


def test_rooms_that_reach_each_other_are_a_circle(made: Made) -> None:
    rooms = made({"a.py": "import {p}.b", "b.py": "import {p}.c", "c.py": "import {p}.a", "d.py": "import {p}.a"})

    assert rooms.circles == (frozenset({"a", "b", "c"}),)
