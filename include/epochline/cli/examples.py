"""`epochline examples`: enable the shipped examples, or run one on the embedded stack and check the result."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epochline.cli import printing
from epochline.cli.example_switch import disable, enable, list_examples
from epochline.cli.example_topics import committed_values, forget_markers, recreate
from epochline.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epochline.local.stack import Stack
    from epochline_examples.steps import Call, Look, Program, Read, Send

_KILLED, _FAILED = 137, 1
_PARTITIONS = 3
_WRITER = "epochline_writer"

_examples = typer.Typer(no_args_is_help=True, help="The shipped examples: list, enable, disable and run them.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(_examples, name="examples")


_examples.command("list")(list_examples)
_examples.command("enable")(enable)
_examples.command("disable")(disable)


@_examples.command()
def run(name: Annotated[str, typer.Argument(help="The program's name; see `epochline examples list`.")]) -> None:
    """Run the program NAME: print its input, each command and the result, and check the result.

    Starts PostgreSQL and Kafka of the embedded stack if they do not run. The example need not be enabled. The program
    has its own database, named example_NAME, and its own topics; each run recreates them, and they stay until the next
    run. Exit code 0: the result is what the documentation says; 1: it is not, or a step failed; 2: there is no such
    program.
    """
    from epochline_examples.programs import PROGRAMS

    if name not in PROGRAMS:
        raise typer.BadParameter(f"there is no program {name!r}; there are: {', '.join(PROGRAMS)}", param_hint="NAME")
    if not _Run(PROGRAMS[name]).right():
        raise typer.Exit(1)


def _dags() -> Path:
    """The folder of the examples. As a DAGs folder it has all of them, enabled or not."""
    from epochline.config.discovery import EXAMPLES
    from epochline.local.home import project_root

    return project_root() / "dags" / EXAMPLES


class _Run:
    """One run of one program."""

    def __init__(self, program: Program) -> None:
        from epochline.local.stack import Stack

        self._program = program
        self._stack: Stack = Stack()
        self._folder: Path = self._stack.home.root / "examples" / program.name
        self._redis: str | None = None

    def right(self) -> bool:
        """Run the steps; return whether every result is as expected."""
        if not self._program.redis:
            return self._right()
        from epochline_examples.redis_server import redis_server

        try:
            with redis_server() as self._redis:
                return self._right()
        except (FileNotFoundError, TimeoutError) as error:
            raise StackError(str(error)) from error

    def _right(self) -> bool:
        from epochline_examples.steps import Call, Look, Read, Send, Sql

        printing.say(self._program.shows)
        self._prepare()
        as_expected = True
        for step in self._program.steps:
            match step:
                case Send():
                    self._send(step)
                case Call():
                    self._call(step)
                case Sql():
                    printing.say(f"# {step.text}")
                    self._change(step.text)
                case Look() | Read():
                    as_expected = self._as_expected(step) and as_expected
        return self._verdict() and as_expected

    def _prepare(self) -> None:
        self._stack.up(("postgres", "kafka"), report=printing.progress)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._stack.postgres.make_database(self._database)
        self._make_topics()
        self._run("migrate", quiet=True)
        if self._program.sql is not None:
            self._change(self._program.sql)

    def _make_topics(self) -> None:
        from epochline.config.discovery import find, look

        servers, program = self._stack.kafka.bootstrap_servers, self._program
        declared = look(_dags())
        printing.broken(declared.broken)
        written = find(program.pipeline, _dags()).topics
        fed = [program.topic, *(getattr(step, "to", None) for step in program.steps)]
        partitions = {
            **{topic: 1 for topic in fed if topic is not None},
            **{topic: _PARTITIONS for sink in written for topic in sink.topics},
        }
        readers = [
            one.consumer_group
            for one in declared.pipelines.values()
            if any(not partitions.keys().isdisjoint(source.topics) for source in one.kafka_sources.values())
        ]
        if partitions:
            recreate(servers, partitions, forgotten=readers)
        forget_markers(servers, program.pipeline, [sink.name for sink in written])

    def _change(self, text: str) -> None:
        """Run a SQL file of the programs' folder, or a statement."""
        import psycopg2

        import epochline_examples.programs

        folder = Path(epochline_examples.programs.__file__).parent
        statements = (folder / text).read_text() if text.endswith(".sql") else text
        with closing(psycopg2.connect(self._stack.postgres.dsn(self._database))) as session, session:
            session.cursor().execute(statements)

    @property
    def _database(self) -> str:
        return f"example_{self._program.name}"

    def _send(self, step: Send) -> None:
        for line in step.lines:
            printing.say(f"> {line}" if step.to is None else f"{step.to}> {line}")
        file = self._folder / "input"
        file.write_text("".join(f"{line}\n" for line in step.lines))
        self._run("feed", str(file), "--topic", str(step.to or self._program.topic), quiet=True)

    def _call(self, step: Call) -> None:
        said = f"$ epochline {step.command}".replace("{folder}", str(self._folder))
        printing.say(
            said
            + (f"    # killed at {step.killed_at}" if step.killed_at else "")
            + ("    # fails" if step.fails else "")
            + (f"    # fails: EPOCHLINE_EXAMPLE_FAULT={step.fault}" if step.fault else "")
        )
        arguments = [part.replace("{folder}", str(self._folder)) for part in shlex.split(step.command)]
        self._run(*arguments, killed_at=step.killed_at, fault=step.fault, fails=step.fails)

    def _run(
        self,
        *arguments: str,
        killed_at: str | None = None,
        fault: str | None = None,
        fails: bool = False,
        quiet: bool = False,
    ) -> None:
        environment = self._environment()
        if killed_at is not None:
            environment["EPOCHLINE_FAILPOINT"] = f"{killed_at}:exit"
        if fault is not None:
            environment["EPOCHLINE_EXAMPLE_FAULT"] = fault
        done = subprocess.run(
            [sys.executable, "-c", "from epochline.cli import main; main()", *arguments],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not quiet and done.stdout.strip():
            printing.say(done.stdout.rstrip())
        expected = _KILLED if killed_at else _FAILED if fault or fails else 0
        if done.returncode != expected:
            raise StackError(f"`epochline {shlex.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")

    def _environment(self) -> dict[str, str]:
        """The stack's connections, but to the program's database."""
        from epochline.cli.connections import variable
        from epochline.config.connections import POSTGRES
        from epochline.local.credentials import JOB

        environment = {**os.environ, "EPOCHLINE_HOME": str(self._stack.home.root)}
        environment["EPOCHLINE_DAGS"] = str(_dags())
        for fault in ("EPOCHLINE_FAILPOINT", "EPOCHLINE_EXAMPLE_FAULT"):
            environment.pop(fault, None)
        if self._redis is not None:
            environment["REDIS_URL"] = self._redis
        for connection, login in ((POSTGRES, None), (_WRITER, JOB)):
            environment[variable(connection)] = self._stack.postgres.dsn(self._database, login=login)
        return environment

    def _as_expected(self, look: Look | Read) -> bool:
        from epochline_examples.steps import Look

        columns, rows = self._query(look.query) if isinstance(look, Look) else self._consume(look.topic)
        expected = look.expected if isinstance(look, Look) else tuple((value,) for value in look.expected)
        printing.table(columns, rows)
        if rows == expected:
            return True
        printing.say(f"WRONG: expected {expected or 'nothing yet'}")
        return False

    def _query(self, query: str) -> tuple[Sequence[str], tuple[tuple[str, ...], ...]]:
        import psycopg2

        with closing(psycopg2.connect(self._stack.postgres.dsn(self._database))) as session, session.cursor() as cursor:
            cursor.execute(query)
            columns = [one.name for one in cursor.description or ()]
            return columns, tuple(tuple(str(value) for value in row) for row in cursor.fetchall())

    def _consume(self, topic: str) -> tuple[Sequence[str], tuple[tuple[str, ...], ...]]:
        values = committed_values(self._stack.kafka.bootstrap_servers, topic)
        return (f"{topic}, read committed",), tuple((value,) for value in sorted(values))

    def _verdict(self) -> bool:
        right = self._as_expected(self._program.result)
        missing = [name for name in self._program.files if not (self._folder / name).is_file()]
        if missing:
            printing.say(f"WRONG: missing in {self._folder}: {', '.join(missing)}")
        if right and not missing:
            printing.say("RIGHT: this is what the documentation says")
        return right and not missing
