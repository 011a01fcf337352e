"""Steps of the example programs. Each can also be done by hand."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Send:
    """Sends lines to the program's topic, each as a record."""

    lines: tuple[str, ...]

    def __init__(self, *lines: str) -> None:
        object.__setattr__(self, "lines", lines)


@dataclass(frozen=True, slots=True)
class Call:
    """Calls `epochline`.

    Args:
        command: its arguments; ``{folder}`` stands for the program's folder.
        killed_at: the failpoint at which the process is killed, or None.
        fault: value of ``EPOCHLINE_EXAMPLE_FAULT``, with which the program raises and the run fails, or None.
    """

    command: str
    killed_at: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Checks the result of a query, as text."""

    query: str
    expected: tuple[tuple[str, ...], ...]

    def __init__(self, query: str, *expected: tuple[str, ...]) -> None:
        object.__setattr__(self, "query", query)
        object.__setattr__(self, "expected", expected)


@dataclass(frozen=True, slots=True)
class Read:
    """Checks the records of a topic that a ``read_committed`` consumer sees, sorted."""

    topic: str
    expected: tuple[str, ...]

    def __init__(self, topic: str, *expected: str) -> None:
        object.__setattr__(self, "topic", topic)
        object.__setattr__(self, "expected", tuple(sorted(expected)))


Step = Send | Call | Look | Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One example program.

    Args:
        name: its name on the command line.
        shows: what it shows, in a sentence.
        pipeline: name of its pipeline, declared under ``dags/examples``.
        topic: topic that the pipeline reads; it is created again with one partition, output topics with three.
        steps: its steps, in order.
        result: the last check.
        files: names of the files that must be in the program's folder at the end.
        sql: SQL file in this folder that creates the program's existing tables.
        service: name of the database in libpq's service file, for the program's functions.
    """

    name: str
    shows: str
    pipeline: str
    topic: str
    steps: tuple[Step, ...]
    result: Look | Read
    files: tuple[str, ...] = field(default=())
    sql: str | None = None
    service: str | None = None
