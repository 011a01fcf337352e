"""Steps of the example programs. Each can also be done by hand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Send:
    """Sends lines to a topic, each as a record; by default to the program's."""

    lines: tuple[str, ...]
    to: str | None

    def __init__(self, *lines: str, to: str | None = None) -> None:
        object.__setattr__(self, "lines", lines)
        object.__setattr__(self, "to", to)


@dataclass(frozen=True, slots=True)
class Call:
    """Calls `epochline`.

    Args:
        command: its arguments; ``{folder}`` stands for the program's folder.
        killed_at: the failpoint at which the process is killed, or None.
        fault: value of ``EPOCHLINE_EXAMPLE_FAULT``, with which the program raises and the run fails, or None.
        fails: whether the run fails because of an earlier `Sql`.
    """

    command: str
    killed_at: str | None = None
    fault: str | None = None
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Sql:
    """Runs SQL in the program's database: a file of this folder, if the text ends with ``.sql``, or one statement."""

    text: str


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


Step = Send | Call | Sql | Look | Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One example program.

    The topic that its pipeline reads is created again with one partition, like those that the steps send to; output
    topics get three.
    """

    name: str
    shows: str
    pipeline: str
    topic: str | None
    """None for a pipeline that reads a custom source."""
    steps: tuple[Step, ...]
    result: Look | Read
    """The last check."""
    files: tuple[str, ...] = ()
    """Paths of the files that must be there at the end, relative to the program's folder."""
    sql: str | None = None
    """SQL file in this folder that creates the program's existing tables."""
    redis: bool = False
    """Whether the program needs a Redis with the cities."""
