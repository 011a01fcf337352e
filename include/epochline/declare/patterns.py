"""Patterns in RE2's syntax, paths to members of nested JSON objects, and values of members. Pure.

Python's ``re`` is never asked about such a pattern: it reads ``[[:alpha:]]`` as another set, and its time may double
with each letter of a record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import count
from typing import Any

from epochline.declare.columns import INTEGERS, ColumnType

# What a parenthesis is not special in (a quoted text, an escape, a class), or a parenthesis that opens a group.
_PART = re.compile(
    r"""
    \\Q (?P<quoted>.*?) (?:\\E|\Z)
    | \\.
    | \[\^?\]? (?:\\.|\[:\^?\w+:\]|[^\]\\])* \]
    | \( (?P<kind>\? (?:P?<(?P<name>\w+)>)?)?
    """,
    re.VERBOSE | re.DOTALL,
)


def named_groups(pattern: str) -> tuple[str, ...]:
    """Names of the groups of a valid pattern, in their order."""
    return tuple(part["name"] for part in _PART.finditer(pattern) if part["name"])


def whole_match(pattern: str) -> str:
    r"""The pattern that matches a whole text, with a name for each unnamed group; closes an open ``\Q``.

    Arrow refuses unnamed groups. If they did not capture, RE2 might give a named one other text.
    """
    prefix, number = "unnamed", count()
    while any(name.startswith(prefix) for name in named_groups(pattern)):
        prefix += "_"

    def written(part: re.Match[str]) -> str:
        if part["quoted"] is not None:
            return rf"\Q{part['quoted']}\E"
        return f"(?P<{prefix}{next(number)}>" if part[0] == "(" else part[0]

    return rf"\A(?:{_PART.sub(written, pattern)})\z"


def check_pattern(pattern: str) -> None:
    """Raise ``ValueError`` if RE2 refuses it, it names no group or a group twice, or it takes characters apart."""
    import re2

    options = re2.Options()
    options.log_errors = False
    for text in (pattern, whole_match(pattern)):
        try:
            re2.compile(text, options)
        except re2.error as error:
            why = error.args[0].decode() if isinstance(error.args[0], bytes) else error
            raise ValueError(f"RE2 refuses it: {why}; the syntax: https://github.com/google/re2/wiki/Syntax") from error
    groups = named_groups(pattern)
    if not groups:
        raise ValueError("has no named group (?P<name>…), so there is no column to fill")
    twice = sorted({name for name in groups if groups.count(name) > 1})
    if twice:
        raise ValueError(
            f"names the group {', '.join(twice)} twice; give each branch a name of its own and choose between the"
            " columns in a select or a transform, or write a function parse"
        )
    if any(part[0] == r"\C" for part in _PART.finditer(pattern)):
        raise ValueError(r"\C matches one byte, which may be a part of a character; write . or (?s:.)")


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
