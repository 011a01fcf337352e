"""The documents' configurations K1 to K7, by name: one file holds them all, with the documents' defaults. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from epochline.declared import Declared
from epochline.settings import Settings

_FILE = Path(__file__).with_name("profiles.toml")

_DEFAULTS = Settings(
    minimum_pause=timedelta(0),
    timeout=timedelta(minutes=10),
    on_cancel="delete",
    max_concurrent=1,
    semantics="exactly_once",
)


class Profile(Declared):
    """One configuration of the documents.

    Args:
        name: its name.
        settings: every setting that the documents give or have a default for.
        kept: values that are loaded and kept, and that nothing acts on: those of the Kafka sink (K16 to K19), of
            savepoints, and of state that lives in PostgreSQL here and not in a folder.
    """

    name: str
    settings: Settings
    kept: dict[str, Any] = Field(default_factory=dict)


def profile(name: str) -> Profile:
    """The profile of this name, with the documents' defaults for what it leaves out.

    Raises:
        ValueError: there is none; the message names those that are.
    """
    found = profiles().get(name)
    if found is None:
        raise ValueError(f"there is no profile {name!r}; there are {', '.join(profiles())}")
    return found


@cache
def profiles() -> Mapping[str, Profile]:
    """All of them, in the order of the file."""
    return {name: _read(name, table) for name, table in tomllib.loads(_FILE.read_text()).items()}


def _read(name: str, table: dict[str, Any]) -> Profile:
    kept = table.pop("kept", {})
    given = Settings(**table)
    settings = given.model_copy(
        update={
            field: value
            for field, value in _DEFAULTS.model_dump(exclude_none=True).items()
            if getattr(given, field) is None
        }
    )
    if settings.tolerance is None:
        settings = settings.model_copy(update={"tolerable_failures": 0})
    return Profile(name=name, settings=settings, kept=kept)
