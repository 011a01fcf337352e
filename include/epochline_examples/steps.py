"""What the example programs are made of: steps, each of which anybody can do by hand."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Send:
    """Lines that go to the program's topic, each a record."""

    lines: tuple[str, ...]

    def __init__(self, *lines: str) -> None:
        object.__setattr__(self, "lines", lines)


@dataclass(frozen=True, slots=True)
class Call:
    """A command of `epochline`.

    Args:
        command: its arguments; ``{folder}`` stands for a folder of the program's own.
        killed_at: a failpoint at which the process is killed: the document's fault.
        fault: what ``EPOCHLINE_EXAMPLE_FAULT`` is then: the program throws by itself, and the run fails.
    """

    command: str
    killed_at: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What a query gives at this moment, as text."""

    query: str
    expected: tuple[tuple[str, ...], ...]

    def __init__(self, query: str, *expected: tuple[str, ...]) -> None:
        object.__setattr__(self, "query", query)
        object.__setattr__(self, "expected", expected)


@dataclass(frozen=True, slots=True)
class Read:
    """What a consumer that reads committed records sees of a topic at this moment, in the order of the texts."""

    topic: str
    expected: tuple[str, ...]

    def __init__(self, topic: str, *expected: str) -> None:
        object.__setattr__(self, "topic", topic)
        object.__setattr__(self, "expected", tuple(sorted(expected)))


Step = Send | Call | Look | Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One of the example programs.

    Args:
        name: as the command line spells it.
        shows: what it shows, in a sentence.
        pipeline: declared under ``dags/examples``.
        topic: which that reads; made anew with one partition. Topics that it writes are made anew with three.
        steps: in order.
        result: what is there in the end.
        files: names of files that must be in the program's folder in the end.
        sql: file beside this one that makes the tables which the program finds there.
        service: under which its functions find the database in libpq's service file.
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
