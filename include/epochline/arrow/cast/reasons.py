"""Reasons why a record is bad, with marked values.

The quarantine shows a reason with its values, next to the record's bytes. An error goes to logs and into the ledger,
which must not contain values of records (SEC-5): there the marked parts are left out.
"""

from __future__ import annotations

import re

_BEGIN, _END = "\ue000", "\ue001"  # code points for private use
_MARKED = re.compile(f"{_BEGIN}[^{_END}]*{_END}?")
_LONGEST = 1000


def marked(shown: str) -> str:
    """Mark a value in a reason."""
    return f"{_BEGIN}{shown}{_END}"


def printable(reason: str) -> str:
    """A reason for the quarantine: valid text of bounded length, without NUL."""
    text = reason.replace(_BEGIN, "").replace(_END, "")
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def without_values(reason: str) -> str:
    """A reason for an error, without marked values. The text of a user's ``_error`` is unchanged."""
    return printable(_MARKED.sub("a value", reason))
