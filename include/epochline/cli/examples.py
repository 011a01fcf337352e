"""`epochline examples`: the documents' programs on the embedded stack, step by step, with a verdict."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from epochline.local.stack import Stack
    from examples.programs import Call, Look, Program, Send

_KILLED = 137
_WRITER = "epochline_writer"

_examples = typer.Typer(no_args_is_help=True, help="The documents' programs: what they do, and a run of each.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(_examples, name="examples")


@_examples.command("list")
def list_() -> None:
    """Show the programs that can be run."""
    from epochline.cli import printing
    from examples.programs import PROGRAMS

    printing.table(("name", "shows"), [(one.name, one.shows) for one in PROGRAMS.values()])


@_examples.command()
def run(name: Annotated[str, typer.Argument(help="The program's name; see `epochline examples list`.")]) -> None:
    """Run the program NAME: its input, every command that is typed, the result, and whether that is right.

    Starts PostgreSQL and Kafka of the embedded stack if they do not run. The program has a database of its own, named
    example_NAME, and a topic of its own; both are made anew by each run, and stay until the next. Exit code 0: the
    result is what the documents say; 1: it is not, or a step failed; 2: there is no such program.
    """
    from examples.programs import PROGRAMS

    if name not in PROGRAMS:
        raise typer.BadParameter(f"there is no {name!r}; there are: {', '.join(PROGRAMS)}", param_hint="NAME")
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
        """Go through the steps; whether the result is what it must be."""
        from epochline.cli import printing
        from examples.programs import Call, Look, Send

        printing.say(self._program.shows)
        self._prepare()
        as_expected = True
        for step in self._program.steps:
            match step:
                case Send():
                    self._send(step)
                case Call():
                    self._call(step)
                case Look():
                    as_expected = self._as_expected(step) and as_expected
        return self._verdict() and as_expected

    def _prepare(self) -> None:
        from epochline.cli import printing

        self._stack.up(("postgres", "kafka"), report=printing.progress)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._stack.postgres.make_database(self._database)
        _make_topic(self._stack.kafka.bootstrap_servers, self._program.topic, f"epochline.{self._program.pipeline}")
        self._run("migrate", quiet=True)
        if self._program.sql is not None:
            self._make_tables(self._program.sql)
        if self._program.service is not None:
            self._name_service(self._program.service)

    def _make_tables(self, file: str) -> None:
        from contextlib import closing

        import psycopg2

        import examples.programs

        statements = Path(examples.programs.__file__).with_name(file).read_text()
        with closing(psycopg2.connect(self._stack.postgres.dsn(self._database))) as session, session:
            session.cursor().execute(statements)

    def _name_service(self, service: str) -> None:
        """Say in a file of libpq's, which only its owner reads, how functions on executors reach the database."""
        from psycopg2.extensions import parse_dsn

        from epochline.local.credentials import JOB
        from epochline.local.home import write_private

        told = parse_dsn(self._stack.postgres.dsn(self._database, login=JOB))
        write_private(self._services, "\n".join([f"[{service}]", *(f"{key}={told[key]}" for key in told), ""]))

    @property
    def _services(self) -> Path:
        return self._folder / "pg_service.conf"

    @property
    def _database(self) -> str:
        return f"example_{self._program.name}"

    def _send(self, step: Send) -> None:
        from epochline.cli import printing

        for line in step.lines:
            printing.say(f"> {line}")
        file = self._folder / "input"
        file.write_text("".join(f"{line}\n" for line in step.lines))
        self._run("feed", str(file), "--topic", self._program.topic, quiet=True)

    def _call(self, step: Call) -> None:
        from epochline.cli import printing

        said = f"$ epochline {step.command}".replace("{folder}", str(self._folder))
        printing.say(said + (f"    # killed at {step.killed_at}" if step.killed_at else ""))
        arguments = [part.replace("{folder}", str(self._folder)) for part in shlex.split(step.command)]
        self._run(*arguments, killed_at=step.killed_at)

    def _run(self, *arguments: str, killed_at: str | None = None, quiet: bool = False) -> None:
        from epochline.cli import printing
        from epochline.errors import StackError

        environment = self._environment()
        if killed_at is not None:
            environment["EPOCHLINE_FAILPOINT"] = f"{killed_at}:exit"
        done = subprocess.run(
            [sys.executable, "-c", "from epochline.cli import main; main()", *arguments],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not quiet and done.stdout.strip():
            printing.say(done.stdout.rstrip())
        if done.returncode != (_KILLED if killed_at else 0):
            raise StackError(f"`epochline {shlex.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")

    def _environment(self) -> dict[str, str]:
        """The stack's own connections, but with the program's database behind them."""
        from epochline.cli.connections import POSTGRES, variable
        from epochline.local.credentials import JOB
        from epochline.local.home import project_root

        environment = {**os.environ, "EPOCHLINE_HOME": str(self._stack.home.root)}
        environment["EPOCHLINE_DAGS"] = str(project_root() / "dags")
        environment.pop("EPOCHLINE_FAILPOINT", None)
        if self._program.service is not None:
            environment["PGSERVICEFILE"] = str(self._services)
        for connection, login in ((POSTGRES, None), (_WRITER, JOB)):
            environment[variable(connection)] = self._stack.postgres.dsn(self._database, login=login)
        return environment

    def _as_expected(self, look: Look) -> bool:
        from contextlib import closing

        import psycopg2

        from epochline.cli import printing

        with closing(psycopg2.connect(self._stack.postgres.dsn(self._database))) as session, session.cursor() as cursor:
            cursor.execute(look.query)
            columns = [one.name for one in cursor.description or ()]
            rows = tuple(tuple(str(value) for value in row) for row in cursor.fetchall())
        printing.table(columns, rows)
        if rows == look.expected:
            return True
        printing.say(f"WRONG: expected {look.expected or 'nothing yet'}")
        return False

    def _verdict(self) -> bool:
        from epochline.cli import printing

        right = self._as_expected(self._program.result)
        missing = [name for name in self._program.files if not (self._folder / name).is_file()]
        if missing:
            printing.say(f"WRONG: missing in {self._folder}: {', '.join(missing)}")
        if right and not missing:
            printing.say("RIGHT: this is what the documents say")
        return right and not missing


def _make_topic(bootstrap_servers: str, topic: str, group: str) -> None:
    """Make the topic anew, with one partition, and forget who read the old one."""
    from contextlib import closing, suppress

    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError, UnknownTopicOrPartitionError

    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        with suppress(UnknownTopicOrPartitionError):
            admin.delete_topics([topic])
        with suppress(KafkaError):
            admin.delete_groups([group])
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
