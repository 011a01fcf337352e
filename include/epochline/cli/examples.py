"""`epochline examples`: run the documentation's example programs on the embedded stack, and check the result."""

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
from epochline.cli.example_topics import committed_values, forget_markers, recreate
from epochline.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epochline.local.stack import Stack
    from epochline_examples.steps import Call, Look, Program, Read, Send

_KILLED, _FAILED = 137, 1
_PARTITIONS = 3
_WRITER = "epochline_writer"

_examples = typer.Typer(no_args_is_help=True, help="The documentation's example programs: list and run them.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(_examples, name="examples")


@_examples.command("list")
def list_() -> None:
    """List the programs."""
    from epochline_examples.programs import PROGRAMS

    printing.table(("name", "shows"), [(one.name, one.shows) for one in PROGRAMS.values()])


@_examples.command()
def run(name: Annotated[str, typer.Argument(help="The program's name; see `epochline examples list`.")]) -> None:
    """Run the program NAME: print its input, each command and the result, and check the result.

    Starts PostgreSQL and Kafka of the embedded stack if they do not run. The program has its own database, named
    example_NAME, and its own topics; each run recreates them, and they stay until the next run. Exit code 0: the result
    is what the documentation says; 1: it is not, or a step failed; 2: there is no such program.
    """
    from epochline_examples.programs import PROGRAMS

    if name not in PROGRAMS:
        raise typer.BadParameter(f"there is no program {name!r}; there are: {', '.join(PROGRAMS)}", param_hint="NAME")
    if not _Run(PROGRAMS[name]).right():
        raise typer.Exit(1)


class _Run:
    """One run of one program."""

    def __init__(self, program: Program) -> None:
        from epochline.local.stack import Stack

        self._program = program
        self._stack: Stack = Stack()
        self._folder: Path = self._stack.home.root / "examples" / program.name

    def right(self) -> bool:
        """Run the steps; return whether every result is as expected."""
        from epochline_examples.steps import Call, Look, Read, Send

        printing.say(self._program.shows)
        self._prepare()
        as_expected = True
        for step in self._program.steps:
            match step:
                case Send():
                    self._send(step)
                case Call():
                    self._call(step)
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
            self._make_tables(self._program.sql)
        if self._program.service is not None:
            self._name_service(self._program.service)

    def _make_topics(self) -> None:
        from epochline.config.discovery import find_all
        from epochline.local.home import project_root

        servers, program = self._stack.kafka.bootstrap_servers, self._program
        declared = find_all(project_root() / "dags")
        written = declared[program.pipeline].topics
        partitions = {program.topic: 1, **{sink.topic: _PARTITIONS for sink in written}}
        readers = [
            one.consumer_group for one in declared.values() if not partitions.keys().isdisjoint(one.source.topics)
        ]
        recreate(servers, partitions, forgotten=readers)
        forget_markers(servers, program.pipeline, [sink.name for sink in written])

    def _make_tables(self, file: str) -> None:
        import psycopg2

        import epochline_examples.programs

        statements = Path(epochline_examples.programs.__file__).with_name(file).read_text()
        with closing(psycopg2.connect(self._stack.postgres.dsn(self._database))) as session, session:
            session.cursor().execute(statements)

    def _name_service(self, service: str) -> None:
        """Write a libpq service file, readable by its owner only: functions on executors reach the database by it."""
        from psycopg2.extensions import parse_dsn

        from epochline.local.credentials import JOB
        from epochline.local.home import write_private

        fields = parse_dsn(self._stack.postgres.dsn(self._database, login=JOB))
        write_private(
            self._services, "\n".join([f"[{service}]", *(f"{key}={value}" for key, value in fields.items()), ""])
        )

    @property
    def _services(self) -> Path:
        return self._folder / "pg_service.conf"

    @property
    def _database(self) -> str:
        return f"example_{self._program.name}"

    def _send(self, step: Send) -> None:
        for line in step.lines:
            printing.say(f"> {line}")
        file = self._folder / "input"
        file.write_text("".join(f"{line}\n" for line in step.lines))
        self._run("feed", str(file), "--topic", self._program.topic, quiet=True)

    def _call(self, step: Call) -> None:
        said = f"$ epochline {step.command}".replace("{folder}", str(self._folder))
        printing.say(
            said
            + (f"    # killed at {step.killed_at}" if step.killed_at else "")
            + (f"    # fails: EPOCHLINE_EXAMPLE_FAULT={step.fault}" if step.fault else "")
        )
        arguments = [part.replace("{folder}", str(self._folder)) for part in shlex.split(step.command)]
        self._run(*arguments, killed_at=step.killed_at, fault=step.fault)

    def _run(
        self, *arguments: str, killed_at: str | None = None, fault: str | None = None, quiet: bool = False
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
        expected = _KILLED if killed_at else _FAILED if fault else 0
        if done.returncode != expected:
            raise StackError(f"`epochline {shlex.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")

    def _environment(self) -> dict[str, str]:
        """The stack's connections, but to the program's database."""
        from epochline.cli.connections import variable
        from epochline.config.connections import POSTGRES
        from epochline.local.credentials import JOB
        from epochline.local.home import project_root

        environment = {**os.environ, "EPOCHLINE_HOME": str(self._stack.home.root)}
        environment["EPOCHLINE_DAGS"] = str(project_root() / "dags")
        for fault in ("EPOCHLINE_FAILPOINT", "EPOCHLINE_EXAMPLE_FAULT"):
            environment.pop(fault, None)
        if self._program.service is not None:
            environment["PGSERVICEFILE"] = str(self._services)
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
