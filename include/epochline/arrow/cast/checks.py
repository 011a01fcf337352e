"""Refuse values that a PostgreSQL type cannot hold."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


class DoesNotFitError(ValueError):
    """A value does not fit its type. The message is a few words, with which the reason of a bad record ends."""


def require(holds: pa.Array, otherwise: str) -> None:
    """Refuse an array unless a condition holds in every row; NULL counts as true.

    Raises:
        DoesNotFitError: with the message ``otherwise``.
    """
    if not pc.all(holds, skip_nulls=True, min_count=0).as_py():
        raise DoesNotFitError(otherwise)


def any_true(flags: pa.Array) -> bool:
    """Whether a boolean array holds a true value. NULL counts as false."""
    return bool(pc.any(flags, min_count=0).as_py())


def require_utf8(text: str) -> None:
    """Refuse a text with a lone surrogate, which UTF-8 cannot encode.

    Raises:
        DoesNotFitError: the text contains half a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DoesNotFitError("half a surrogate pair in a text") from error
