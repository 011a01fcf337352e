"""What a failed Spark job means: the error of ours that a task raised, found in what Spark says about it."""

from __future__ import annotations

import re

from epochline import errors
from epochline.errors import EpochlineError

_OURS = re.compile(r"^(?:\s|\S+Exception: )*epochline\.errors\.(?P<name>\w+): (?P<message>.*)$", re.MULTILINE)
"""The last line of a Python traceback, as it stands in the message of a JVM exception."""


def told(error: BaseException) -> EpochlineError | None:
    """The error that stands behind an exception, or None where it is none of ours.

    Spark gives the driver a Python worker's exception as text: class and message are read from it.
    """
    if isinstance(error, EpochlineError):
        return error
    found = _OURS.search(str(error))
    kind = getattr(errors, found["name"], None) if found else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, EpochlineError):
        return None
    return kind(found["message"].strip())


def one_line(error: BaseException) -> str:
    """An error as one line for a log or the ledger."""
    return " ".join(str(error).split())
