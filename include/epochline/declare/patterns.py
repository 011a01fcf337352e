"""Patterns in RE2's syntax: the groups that they name, and whether RE2 accepts them. Pure.

Python's ``re`` is never asked about such a pattern: it reads ``[[:alpha:]]`` as another set, and its time may double
with each letter of a record.
"""

from __future__ import annotations

import re

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
    r"""The pattern that matches a whole text, without unnamed groups, which Arrow refuses; closes an open ``\Q``."""

    def written(part: re.Match[str]) -> str:
        if part["quoted"] is not None:
            return rf"\Q{part['quoted']}\E"
        return "(?:" if part[0] == "(" else part[0]

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
