"""Reasons why a value does not fit. The quarantine shows them whole; logs and the ledger leave marked values out."""

import re

import pyarrow as pa
import pyarrow.compute as pc


class DoesNotFitError(ValueError):
    """A value does not fit its type. The message is a few words, with which the reason of a bad record ends."""


def require(holds: pa.Array, otherwise: str) -> None:
    """Raise `DoesNotFitError` with a message unless a condition holds in every row. NULL counts as true."""
    if not pc.all(holds, skip_nulls=True, min_count=0).as_py():
        raise DoesNotFitError(otherwise)


def any_true(flags: pa.Array) -> bool:
    """Whether a boolean array holds a true value. NULL counts as false."""
    return bool(pc.any(flags, min_count=0).as_py())


def require_utf8(text: str) -> None:
    """Raise `DoesNotFitError` for a text with half a surrogate pair, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DoesNotFitError("half a surrogate pair in a text") from error


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
