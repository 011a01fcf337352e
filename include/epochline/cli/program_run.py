"""Run one example program on the embedded stack, and check its results."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg2

from epochline.cli import printing
from epochline.cli.connections import variable
from epochline.cli.shipped import shipped_folder
from epochline.config.connections import POSTGRES
from epochline.config.discovery import EXAMPLES, find, look
from epochline.declare.topic import CONTROL_TOPIC
from epochline.errors import StackError
from epochline.local.credentials import JOB
from epochline.local.stack import Stack
from epochline_examples import programs
from epochline_examples.programs import Call, Look, Program, Read, Send, Sql, Step
from epochline_examples.redis_server import redis_server
from epochline_examples.two_transactions import read

_KILLED, _FAILED = 137, 1
_PARTITIONS = 3


class ProgramRun:
    """One run of one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._stack = Stack()
        self._folder = self._stack.home.root / "examples" / program.name
        self._database = f"example_{program.name}"
        # As a DAGs folder it has all examples, enabled or not.
        self._dags = shipped_folder() / "dags" / EXAMPLES
        self._redis: str | None = None

    def right(self) -> bool:
        """Run the steps; return whether every result is as expected."""
        with ExitStack() as block:
            if self._program.redis:
                try:
                    self._redis = block.enter_context(redis_server())
                except (FileNotFoundError, TimeoutError) as error:
                    raise StackError(str(error)) from error
            printing.say(self._program.shows)
            self._prepare()
            right = [self._do(step) for step in self._program.steps[:-1]]
            return self._verdict() and all(right)

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
        """Delete and create the program's topics, and forget the groups that read them and what its sinks show."""
        from kafka import KafkaAdminClient, KafkaProducer
        from kafka.errors import KafkaError, UnknownTopicOrPartitionError

        from epochline.kafka.markers import Marker

        servers, program = self._stack.kafka.bootstrap_servers, self._program
        declared = look(self._dags)
        printing.broken(declared.broken)
        sinks = find(program.pipeline, self._dags).topics
        fed = [program.topic, *(step.to for step in program.steps if isinstance(step, Send))]
        partitions = {
            **{topic: 1 for topic in fed if topic is not None},
            **{topic: _PARTITIONS for sink in sinks for topic in sink.topics},
        }
        readers = [
            pipeline.consumer_group
            for pipeline in declared.pipelines.values()
            if any(not partitions.keys().isdisjoint(source.topics) for source in pipeline.kafka_sources.values())
        ]
        with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
            for topic in partitions:
                with suppress(UnknownTopicOrPartitionError):
                    admin.delete_topics([topic])
            for group in readers if partitions else ():
                with suppress(KafkaError):
                    admin.delete_groups([group])
            topics = {topic: {"num_partitions": count, "replication_factor": 1} for topic, count in partitions.items()}
            if topics:
                admin.create_topics(topics, wait_for_metadata=True)
            if CONTROL_TOPIC not in admin.list_topics():
                return
        # The ledger is new as well, so the control topic must not know an epoch of these sinks.
        with closing(KafkaProducer(bootstrap_servers=servers, acks="all")) as producer:
            for sink in sinks:
                producer.send(CONTROL_TOPIC, key=Marker.key(program.pipeline, sink.name), value=None).get(30)

    def _do(self, step: Step) -> bool:
        """Do one step; return False if a check shows another result."""
        match step:
            case Send():
                self._send(step)
            case Call():
                self._call(step)
            case Sql():
                printing.say(f"# {step.sql}")
                self._change(step.sql)
            case Look() | Read():
                return self._as_expected(step)
        return True

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
        expected: tuple[tuple[str, ...], ...]
        if isinstance(step, Look):
            expected = step.rows
            dsn = self._stack.postgres.dsn(self._database)
            with closing(psycopg2.connect(dsn)) as session, session.cursor() as cursor:
                cursor.execute(self._program.query)
                columns = [column.name for column in cursor.description or ()]
                rows = tuple(tuple(map(str, row)) for row in cursor.fetchall())
        else:
            expected = tuple((value,) for value in step.values)
            columns = [f"{step.topic}, read committed"]
            servers = self._stack.kafka.bootstrap_servers
            values = [value for number in range(_PARTITIONS) for value in read(servers, step.topic, 0, number)[0]]
            rows = tuple((value,) for value in sorted(values))
        printing.table(columns, rows)
        if rows != expected:
            printing.say(f"WRONG: expected {expected or 'nothing yet'}")
        return rows == expected

    def _verdict(self) -> bool:
        right = self._as_expected(self._program.result)
        missing = [name for name in self._program.files if not (self._folder / name).is_file()]
        if missing:
            printing.say(f"WRONG: missing in {self._folder}: {', '.join(missing)}")
        elif right:
            printing.say("RIGHT: this is what the documentation says")
        return right and not missing
