"""Reasons why a record is bad, with the values in them marked.

The quarantine shows a reason whole, beside the record's own bytes. An error is written to logs and into the ledger,
where no value of a record belongs (SEC-5): there the marked parts are left out.
"""

from __future__ import annotations

import re

_BEGIN, _END = "\ue000", "\ue001"  # code points for private use
_MARKED = re.compile(f"{_BEGIN}[^{_END}]*{_END}?")
_LONGEST = 1000


def marked(shown: str) -> str:
    """A value, as a reason shows it."""
    return f"{_BEGIN}{shown}{_END}"


def printable(reason: str) -> str:
    """A reason as it can be stored: valid text without NUL, of bounded length."""
    text = reason.replace(_BEGIN, "").replace(_END, "")
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def without_values(reason: str) -> str:
    """A reason as an error may say it. What a pipeline's own function wrote into ``_error`` stays as it is."""
    return printable(_MARKED.sub("a value", reason))
