"""Paths to members of nested JSON objects, such as ``$.address.city``, and values of members. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from epochline.declare.columns import INTEGERS, ColumnType

_STEP = re.compile(
    r"""
    \.(?P<plain>[^\W\d][\w-]*)                  # .city
    | \["(?P<quoted>[^"\\]+)"\]                 # ["zip code"]
    | \['(?P<single>[^'\\]+)'\]                 # ['zip code']
    | (?P<array>\[\s*(?:-?\d+|\*|[-\d:]+)\s*\]) # [0], [*], [1:2]
    """,
    re.VERBOSE,
)
_OBJECTS = ("json", "jsonb")


def read_path(text: str) -> tuple[str, ...]:
    """The names of the members on a path, outermost first; raises ``ValueError`` for any other text."""
    if not text.startswith("$"):
        raise ValueError(f"{text!r}: a path begins with $, such as $.address.city")
    steps: list[str] = []
    at = 1
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise ValueError(f'{text!r} is not a path at character {at}; write $.address.city, or $["zip code"]')
        if step["array"]:
            raise ValueError(
                f"{text!r}: a path does not go into arrays; read the array as a jsonb column, or write a function parse"
            )
        steps.append(step["plain"] or step["quoted"] or step["single"])
        at = step.end()
    if not steps:
        raise ValueError(f"{text!r} names no member; write $.address.city")
    return tuple(steps)


def written_path(steps: tuple[str, ...]) -> str:
    """The text of a path, as a reason shows it."""
    return "$" + "".join(f".{step}" if re.fullmatch(r"[^\W\d][\w-]*", step) else f'["{step}"]' for step in steps)


def check_paths(paths: Mapping[str, tuple[str, ...]], kinds: Mapping[str, ColumnType]) -> None:
    """Raise ``ValueError`` if one column reads inside what another reads as a plain value: no record fills both."""
    for outer, above in paths.items():
        for inner, below in paths.items():
            if len(above) < len(below) and below[: len(above)] == above and kinds[outer].name not in _OBJECTS:
                raise ValueError(
                    f"{inner} is read from inside {written_path(above)}, which the column {outer} reads as"
                    f" {kinds[outer]}; an object fits only json or jsonb"
                )


def is_json_of(value: Any, kind: ColumnType) -> bool:
    """Whether a value is written in JSON as values of the column are: a number, true or false, a text, a document."""
    if kind.name in _OBJECTS:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return False
        return value is not None
    if kind.name == "boolean":
        return isinstance(value, bool)
    if kind.name in INTEGERS:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind.name in ("real", "double precision"):
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    if kind.name == "numeric":
        return isinstance(value, int | float | str) and not isinstance(value, bool)
    return isinstance(value, str)
