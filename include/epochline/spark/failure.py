"""Finds the Epochline error behind a failed Spark job in Spark's message."""

from __future__ import annotations

import importlib
import re

from epochline.errors import (
    DataLossError,
    EpochlineError,
    SourceAuthenticationError,
    SourceError,
    SourceUnavailableError,
)

_OURS = re.compile(
    r"^(?:\s|\S+Exception: )*(?P<module>epochline(?:\.\w+)+)\.(?P<name>\w+): (?P<message>.*)$", re.MULTILINE
)
"""Last line of a Python traceback in the message of a JVM exception."""

_FRAME = re.compile(r"\s+at [\w.$<>/]+\(|\s*\.\.\. \d+ more|\s+File \"|Traceback \(most recent|Driver stacktrace|    ")
_LONGEST = 2000

_LOST = re.compile(
    r"[^\n]*(?:KafkaIllegalStateException|KAFKA_DATA_LOSS|OffsetOutOfRangeException|may have been lost)[^\n]*"
)
_REFUSED = re.compile(r"org\.apache\.kafka\.common\.errors\.(?:Sasl|Ssl)AuthenticationException[^\n]*")
_UNREACHABLE = re.compile(
    r"org\.apache\.kafka\.common\.errors\.TimeoutException[^\n]*|No resolvable bootstrap urls[^\n]*"
    r"|Cannot fetch record for offset[^\n]*"
)


def epochline_error_from(error: BaseException) -> EpochlineError | None:
    """Find the Epochline error behind an exception; None if there is none.

    Spark passes a Python worker's exception to the driver as text, from which class and message are read. Errors of
    Kafka's client, such as a missing range (``failOnDataLoss``), become Epochline errors too.
    """
    if isinstance(error, EpochlineError):
        return error
    text = str(error)
    for found in _OURS.finditer(text):
        kind = _error_class(found["module"], found["name"])
        if kind is not None:
            return kind(found["message"].strip())
    return _of_kafka(text)


def _error_class(module: str, name: str) -> type[EpochlineError] | None:
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, EpochlineError) else None


def _of_kafka(text: str) -> SourceError | None:
    lost = _LOST.search(text)
    if lost is not None:
        return DataLossError(
            f"Kafka did not return every record of the planned range: {' '.join(lost[0].split())}."
            " The attempt failed; nothing it wrote counts"
        )
    refused = _REFUSED.search(text)
    if refused is not None:
        return SourceAuthenticationError(f"Kafka: {' '.join(refused[0].split())}. Correct the connection")
    gone = _UNREACHABLE.search(text)
    return None if gone is None else SourceUnavailableError(f"Kafka: {' '.join(gone[0].split())}")


def one_line(error: BaseException) -> str:
    """An error's message as one line for a log or the ledger, without the stack frames of Python and the JVM."""
    lines = [line for line in str(error).splitlines() if not _FRAME.match(line)]
    return " ".join(" ".join(lines).split())[:_LONGEST]
