"""What made an attempt fail: its error as the ledger keeps it, and what follows from the error's class. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from epochline.errors import Failure, one_line, rebuilt

_LONGEST = 4000

GIVEN_UP_AFTER = 3
"""After this many attempts of an epoch with the same failure, the failure counts as one that stays (ADR 0049)."""

_COUNTED = re.compile(r"\b(attempt|epoch) \d+")
_REPLACED = re.compile(r"(^|; )attempt \d+ took its place$")
"""What is added to the error of an attempt when the next one begins."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedError:
    """An error as the ledger keeps it: the columns ``error_class``, ``error`` and ``error_command``."""

    error_class: str
    said: str
    """The message in one line, without the class and the command."""
    command: str | None = None

    @classmethod
    def of(cls, error: BaseException, said: str | None = None) -> RecordedError:
        """What the ledger keeps of an error; ``said`` is its message, where its own text holds more."""
        command: str | None = getattr(error, "command", None)
        if said is None:
            said = str(error) if command is None else getattr(error, "said", str(error))
        return cls(error_class=type(error).__name__, said=one_line(said), command=command)

    def __str__(self) -> str:
        return f"{self.error_class}: {self.said}"[:_LONGEST]


def failure_of(error_class: str | None, error: str | None) -> Failure:
    """What made an attempt fail; its class is None if its process was lost, ``error`` is the ledger's whole text."""
    if error_class is None or error_class in _OF_SERVERS:
        return Failure.PASSING
    ours = rebuilt(error_class, "")
    if ours is not None:
        return ours.failure
    if error_class in _AROUND and _OF_PYTHON not in (error or ""):
        return Failure.PASSING
    return Failure.CODE


def failed_alike(newest_first: Sequence[tuple[str | None, str | None]]) -> int:
    """How many of an epoch's newest attempts, by class and text, failed of one error of code; 0 if it may pass."""
    if not newest_first or failure_of(*newest_first[0]) is Failure.PASSING:
        return 0
    error_class, error = newest_first[0][0], _without_numbers(newest_first[0][1])
    alike = takewhile(
        lambda attempt: attempt[0] == error_class and _without_numbers(attempt[1]).startswith(error), newest_first
    )
    return sum(1 for _ in alike)


def _without_numbers(error: str | None) -> str:
    """An error without the numbers of attempts and epochs, by which errors of one cause differ."""
    return _COUNTED.sub(r"\1", error or "")


def folded(rows: Iterable[Mapping[str, Any]], *same: str) -> list[list[Mapping[str, Any]]]:
    """Group neighbouring rows with one ``error``, apart from numbers and additions, and equal columns ``same``."""
    groups: list[list[Mapping[str, Any]]] = []
    for row in rows:
        if groups and _is_one_error(groups[-1][0], row) and all(groups[-1][0][name] == row[name] for name in same):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _is_one_error(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one["error"] is None or other["error"] is None:
        return False
    shorter, longer = sorted((_without_numbers(_REPLACED.sub("", row["error"])) for row in (one, other)), key=len)
    return longer.startswith(shorter) and bool(shorter) is bool(longer)


def may_be_repeated(error_class: str | None) -> bool:
    """Whether the restart strategy applies to an error of this class."""
    ours = rebuilt(error_class, "")
    return ours is None or ours.retryable
