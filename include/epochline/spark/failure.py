"""Finds the Epochline error behind a failed Spark job in Spark's message."""

import importlib
import re
from contextlib import suppress

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from epochline.errors import EpochlineError, one_line

_OURS = re.compile(
    r"^(?:\s|\S+Exception: )*(?P<module>epochline(?:\.\w+)+)\.(?P<name>\w+): (?P<message>.*)$", re.MULTILINE
)
"""Last line of a Python traceback in the message of a JVM exception."""

_FRAME = re.compile(r"\s+at [\w.$<>/]+\(|\s*\.\.\. \d+ more|\s+File \"|Traceback \(most recent|Driver stacktrace|    ")
_LONGEST = 2000
_TRACEBACK = "Traceback (most recent call last)"
_PYTHON_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def epochline_error_from(error: BaseException) -> EpochlineError | None:
    """Find the Epochline error behind an exception, also in the text of a worker's exception; None if there is none."""
    if isinstance(error, EpochlineError):
        return error
    for match in _OURS.finditer(str(error)):
        with suppress(ImportError):
            kind = getattr(importlib.import_module(match["module"]), match["name"], None)
            if isinstance(kind, type) and issubclass(kind, EpochlineError):
                return kind(match["message"].strip())
    return None


def error_of_user(error: BaseException) -> tuple[str, str] | None:
    """Class and message of the exception that a function raised in a Python worker, with the line that raised it.

    None if Spark's message, which differs from attempt to attempt, holds no traceback of Python.
    """
    lines = str(error).splitlines()
    begins = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    if not begins:
        return None
    frame = ""
    for line in lines[begins[-1] + 1 :]:
        at = _PYTHON_FRAME.match(line)
        if at is not None:
            frame = f" ({at['file'].rsplit('/', 1)[-1]}, line {at['line']}, in {at['function']})"
        elif line.strip() and not line.startswith(" "):
            name, _, message = line.strip().partition(": ")
            name = name.rpartition(".")[2]
            return (name, f"{message}{frame}"[:_LONGEST]) if name.isidentifier() else None
    return None


def class_and_message(error: BaseException) -> tuple[str, str]:
    """What `error_of_user` finds, or else the error's own class and the first line of its message."""
    return error_of_user(error) or (type(error).__name__, next(iter(str(error).strip().splitlines()), ""))


def driver_is_gone(spark: SparkSession) -> bool:
    """Whether the JVM that this process drives no longer answers. A server's client drives none."""
    if is_remote():
        return False
    try:
        spark.sparkContext._jvm.System.nanoTime()  # type: ignore[union-attr]
    except (Py4JError, OSError):
        return True
    return False


def without_frames(error: BaseException) -> str:
    """An error's message as one line for a log or the ledger, without the stack frames of Python and the JVM."""
    lines = [line for line in str(error).splitlines() if not _FRAME.match(line)]
    return one_line(" ".join(lines))[:_LONGEST]
