"""What made an attempt fail, read from the error that the ledger keeps. Pure."""

from __future__ import annotations

import re

from epochline.errors import Failure, error_of

_RECORDED = re.compile(r"(?P<name>\w+): ")

_AROUND = frozenset(
    ("Py4JError", "Py4JJavaError", "SparkConnectException", "SparkConnectGrpcException", "SparkException")
)
"""Exceptions in which Spark passes on whatever ended a job."""

_OF_PYTHON = "PythonException"
"""Named in Spark's message if a function of the user raised an exception in a worker."""

_OF_SERVERS = frozenset(
    (
        "BrokenPipeError", "ConnectionAbortedError", "ConnectionError", "ConnectionRefusedError",
        "ConnectionResetError", "MemoryError", "OSError", "Py4JNetworkError", "RetriesExceeded", "TimeoutError",
    )
)  # fmt: skip


def failure_of(error: str | None) -> Failure:
    """Tell failures apart that the pipeline survives from those after which somebody has to act (K11, N1).

    Args:
        error: of an attempt, as ``Class: message``. None, or a text without a class, if nothing was heard of the
            attempt: its process was lost.
    """
    named = _RECORDED.match(error or "")
    if error is None or named is None or named["name"] in _OF_SERVERS:
        return Failure.PASSING
    ours = error_of(error)
    if ours is not None:
        return ours.failure
    if named["name"] in _AROUND and _OF_PYTHON not in error:
        return Failure.PASSING
    return Failure.CODE


def may_be_repeated(error: str | None) -> bool:
    """Whether the restart strategy applies to a recorded error."""
    ours = error_of(error or "")
    return ours is None or ours.retryable
