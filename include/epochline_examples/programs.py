"""Example programs and their steps, as ``programs.toml`` has them. Each step can also be done by hand."""

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class _Described(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Send(_Described):
    """Sends lines to a topic, each as a record; by default to the program's."""

    lines: tuple[str, ...]
    to: str | None = None


class Call(_Described):
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


class Sql(_Described):
    """Runs SQL in the program's database: a file of this folder, if the text ends with ``.sql``, or one statement."""

    sql: str


class Look(_Described):
    """Checks the rows of the program's query, as text."""

    rows: tuple[tuple[str, ...], ...]


class Read(_Described):
    """Checks the values in a topic that a ``read_committed`` consumer sees, sorted."""

    topic: str
    values: tuple[str, ...]


Step = Send | Call | Sql | Look | Read


class Program(_Described):
    """One example program.

    Args:
        name: its name on the command line.
        shows: what it shows, in a sentence.
        pipeline: name of its pipeline, declared under ``dags/examples``.
        topic: topic that the pipeline reads. It is created again with one partition, like those that the steps send to;
            output topics get three. None for a pipeline that reads a source of its own.
        query: what its looks ask.
        steps: its steps, in order. The last one is the result.
        files: paths of the files that must be there at the end, relative to the program's folder.
        tables: SQL file in this folder that creates the program's existing tables.
        redis: whether the program needs a Redis with the cities.
    """

    name: str
    shows: str
    pipeline: str
    topic: str | None = None
    query: str = ""
    steps: tuple[Step, ...]
    files: tuple[str, ...] = ()
    tables: str | None = None
    redis: bool = False

    @property
    def result(self) -> Look | Read:
        """The last check."""
        last = self.steps[-1]
        if not isinstance(last, Look | Read):
            raise TypeError(f"{self.name} ends without a check")
        return last


PROGRAMS = {
    program["name"]: Program(**program)
    for program in tomllib.loads(Path(__file__).with_name("programs.toml").read_text())["program"]
}
"""Every program by its name."""
