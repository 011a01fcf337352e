"""`epochline examples`: enable the shipped examples, or run one on the embedded stack and check the result."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import psycopg2
import typer

from epochline.cli import printing
from epochline.cli.connections import variable
from epochline.cli.example_switch import disable, enable, list_examples
from epochline.config.connections import POSTGRES
from epochline.config.discovery import EXAMPLES, find, look
from epochline.declare.topic import CONTROL_TOPIC
from epochline.errors import StackError
from epochline.local.credentials import JOB
from epochline.local.home import project_root
from epochline.local.stack import Stack
from epochline_examples import programs
from epochline_examples.programs import PROGRAMS, Call, Look, Program, Read, Send, Sql
from epochline_examples.redis_server import redis_server

_KILLED, _FAILED = 137, 1
_PARTITIONS = 3

app = typer.Typer(no_args_is_help=True)
app.command("list")(list_examples)
app.command("enable")(enable)
app.command("disable")(disable)


@app.callback()
def examples() -> None:
    """The shipped examples: list, enable, disable and run them."""


@app.command()
def run(name: Annotated[str, typer.Argument(help="The program's name; see `epochline examples list`.")]) -> None:
    """Run the program NAME: print its input, each command and the result, and check the result.

    Starts PostgreSQL and Kafka of the embedded stack if they do not run. The example need not be enabled. The program
    has its own database, named example_NAME, and its own topics; each run recreates them, and they stay until the next
    run. Exit code 0: the result is what the documentation says; 1: it is not, or a step failed; 2: there is no such
    program.
    """
    if name not in PROGRAMS:
        raise typer.BadParameter(f"there is no program {name!r}; there are: {', '.join(PROGRAMS)}", param_hint="NAME")
    if not _Run(PROGRAMS[name]).right():
        raise typer.Exit(1)


class _Run:
    """One run of one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._stack = Stack()
        self._folder = self._stack.home.root / "examples" / program.name
        self._database = f"example_{program.name}"
        # As a DAGs folder it has all examples, enabled or not.
        self._dags = project_root() / "dags" / EXAMPLES
        self._redis: str | None = None

    def right(self) -> bool:
        """Run the steps; return whether every result is as expected."""
        if not self._program.redis:
            return self._right()
        try:
            with redis_server() as self._redis:
                return self._right()
        except (FileNotFoundError, TimeoutError) as error:
            raise StackError(str(error)) from error

    def _right(self) -> bool:
        printing.say(self._program.shows)
        self._prepare()
        right = True
        for step in self._program.steps[:-1]:
            match step:
                case Send():
                    self._send(step)
                case Call():
                    self._call(step)
                case Sql():
                    printing.say(f"# {step.sql}")
                    self._change(step.sql)
                case Look() | Read():
                    right = self._as_expected(step) and right
        return self._verdict() and right

    def _prepare(self) -> None:
        self._stack.up(("postgres", "kafka"), report=printing.progress)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._stack.postgres.make_database(self._database)
        self._make_topics()
        self._run("migrate", quiet=True)
        if self._program.tables is not None:
            self._change(self._program.tables)

    def _make_topics(self) -> None:
        servers, program = self._stack.kafka.bootstrap_servers, self._program
        declared = look(self._dags)
        printing.broken(declared.broken)
        written = find(program.pipeline, self._dags).topics
        fed = [program.topic, *(step.to for step in program.steps if isinstance(step, Send))]
        partitions = {
            **{topic: 1 for topic in fed if topic is not None},
            **{topic: _PARTITIONS for sink in written for topic in sink.topics},
        }
        readers = [
            pipeline.consumer_group
            for pipeline in declared.pipelines.values()
            if any(not partitions.keys().isdisjoint(source.topics) for source in pipeline.kafka_sources.values())
        ]
        if partitions:
            _recreate(servers, partitions, forgotten=readers)
        _forget_markers(servers, program.pipeline, [sink.name for sink in written])

    def _change(self, text: str) -> None:
        """Run a SQL file of the programs' folder, or a statement."""
        statements = Path(programs.__file__).with_name(text).read_text() if text.endswith(".sql") else text
        with closing(psycopg2.connect(self._stack.postgres.dsn(self._database))) as session, session:
            session.cursor().execute(statements)

    def _send(self, step: Send) -> None:
        for line in step.lines:
            printing.say(f"> {line}" if step.to is None else f"{step.to}> {line}")
        file = self._folder / "input"
        file.write_text("".join(f"{line}\n" for line in step.lines))
        self._run("feed", str(file), "--topic", str(step.to or self._program.topic), quiet=True)

    def _call(self, step: Call) -> None:
        command = step.command.replace("{folder}", str(self._folder))
        killed = f"    # killed at {step.killed_at}" if step.killed_at else ""
        fails = f": EPOCHLINE_EXAMPLE_FAULT={step.fault}" if step.fault else ""
        printing.say(f"$ epochline {command}{killed}{f'    # fails{fails}' if step.fault or step.fails else ''}")
        environment = {"EPOCHLINE_FAILPOINT": f"{step.killed_at}:exit"} if step.killed_at else {}
        environment |= {"EPOCHLINE_EXAMPLE_FAULT": step.fault} if step.fault else {}
        code = _KILLED if step.killed_at else _FAILED if step.fault or step.fails else 0
        self._run(*shlex.split(command), code=code, environment=environment)

    def _run(
        self, *arguments: str, code: int = 0, quiet: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        done = subprocess.run(
            [sys.executable, "-c", "from epochline.cli import main; main()", *arguments],
            env={**self._environment(), **(environment or {})}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not quiet and done.stdout.strip():
            printing.say(done.stdout.rstrip())
        if done.returncode != code:
            raise StackError(f"`epochline {shlex.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")

    def _environment(self) -> dict[str, str]:
        """The stack's connections, but to the program's database."""
        faults = ("EPOCHLINE_FAILPOINT", "EPOCHLINE_EXAMPLE_FAULT")
        environment = {name: value for name, value in os.environ.items() if name not in faults}
        environment |= {"EPOCHLINE_HOME": str(self._stack.home.root), "EPOCHLINE_DAGS": str(self._dags)}
        if self._redis is not None:
            environment["REDIS_URL"] = self._redis
        for connection, login in ((POSTGRES, None), ("epochline_writer", JOB)):
            environment[variable(connection)] = self._stack.postgres.dsn(self._database, login=login)
        return environment

    def _as_expected(self, step: Look | Read) -> bool:
        if isinstance(step, Look):
            columns, rows = self._query()
            expected = step.rows
        else:
            columns = (f"{step.topic}, read committed",)
            values = _committed_values(self._stack.kafka.bootstrap_servers, step.topic)
            rows = tuple((value,) for value in sorted(values))
            expected = tuple((value,) for value in step.values)
        printing.table(columns, rows)
        if rows != expected:
            printing.say(f"WRONG: expected {expected or 'nothing yet'}")
        return rows == expected

    def _query(self) -> tuple[Sequence[str], tuple[tuple[str, ...], ...]]:
        with closing(psycopg2.connect(self._stack.postgres.dsn(self._database))) as session, session.cursor() as cursor:
            cursor.execute(self._program.query)
            columns = [column.name for column in cursor.description or ()]
            return columns, tuple(tuple(str(value) for value in row) for row in cursor.fetchall())

    def _verdict(self) -> bool:
        right = self._as_expected(self._program.result)
        missing = [name for name in self._program.files if not (self._folder / name).is_file()]
        if missing:
            printing.say(f"WRONG: missing in {self._folder}: {', '.join(missing)}")
        elif right:
            printing.say("RIGHT: this is what the documentation says")
        return right and not missing


def _recreate(bootstrap_servers: str, partitions: Mapping[str, int], *, forgotten: Iterable[str]) -> None:
    """Delete and create topics with these numbers of partitions, and delete the groups that read the old topics."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError, UnknownTopicOrPartitionError

    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        for topic in partitions:
            with suppress(UnknownTopicOrPartitionError):
                admin.delete_topics([topic])
        for group in forgotten:
            with suppress(KafkaError):
                admin.delete_groups([group])
        wanted = {topic: {"num_partitions": number, "replication_factor": 1} for topic, number in partitions.items()}
        admin.create_topics(wanted, wait_for_metadata=True)


def _forget_markers(bootstrap_servers: str, pipeline: str, sinks: Iterable[str]) -> None:
    """Delete the control topic's markers of sinks that are recreated together with their ledger."""
    from kafka import KafkaAdminClient, KafkaProducer

    from epochline.kafka.markers import Marker

    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        if CONTROL_TOPIC not in admin.list_topics():
            return
    with closing(KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")) as producer:
        for sink in sinks:
            producer.send(CONTROL_TOPIC, key=Marker.key(pipeline, sink), value=None).get(30)


def _committed_values(bootstrap_servers: str, topic: str) -> list[str]:
    """The values of a topic's committed records, as text."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level="read_committed", enable_auto_commit=False
    )
    with closing(consumer):
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        values: list[str] = []
        while any(consumer.position(one) < ends[one] for one in partitions):
            for records in consumer.poll(timeout_ms=1000).values():
                values += [(record.value or b"").decode() for record in records]
        return values
