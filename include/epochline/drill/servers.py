"""A drill's own PostgreSQL and Kafka, and the runs of the pipeline on them: nothing else can be reached."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg2

from epochline.config.kafka import SERVERS
from epochline.config.places import functions_folder, project_folder
from epochline.declare.pipeline import Pipeline
from epochline.declare.topic import CONTROL_TOPIC
from epochline.drill.production import client
from epochline.errors import StackError
from epochline.failpoints import ALLOWING, NAMED, RECORD, known_failpoints
from epochline.kafka.client import SOURCE, Reports, new_producer
from epochline.kafka.markers import Marker
from epochline.kafka.outgoing import Outgoing
from epochline.kafka.sending import RecordQueue, discard
from epochline.local.credentials import JOB
from epochline.local.home import FALLBACK
from epochline.local.postgres import binaries
from epochline.local.stack import Stack
from epochline.postgres.ledger.migrate import upgrade
from epochline.postgres.queries.statements import change

RUN_SECONDS = 240
"""A run that takes longer is ended, and counts as one that did not recover."""

_BASE, _DATABASE = "drill_base", "drill"
_SERVERS = ("postgres", "kafka", "kafka_controller")

_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "JAVA_HOME",
    "JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS", "SPARK_LOCAL_DIRS", "PYTHONPATH", "PYTHONHASHSEED",
)  # fmt: skip
"""What a run gets of this process's environment. Anything else could lead to production."""

_TAKE_ANY = {"max.message.bytes": "100000000", "message.timestamp.after.max.ms": str(2**63 - 1)}
"""What production's topic took, the copy takes too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of the pipeline."""

    code: int | None
    """None if it was ended after `RUN_SECONDS`."""
    seconds: float
    said: str
    """The last line of its standard error."""
    passed: tuple[str, ...]
    """The failpoints that it passed and that were recorded, in order, with repeats."""


class Servers:
    """PostgreSQL and Kafka in a home of the drill, and what lies beside them there.

    Args:
        folder: the home.
        pipeline: what runs on the servers.
        variables: names of variables of this environment that the runs get too.
        master: Spark's master for the runs.
    """

    def __init__(self, folder: Path, pipeline: Pipeline, variables: Sequence[str], master: str) -> None:
        # Nothing here has to outlive a power cut, so nothing waits for the disk.
        settings = {ALLOWING: "allowed", "fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB"}
        self._stack = Stack(folder, postgres_settings=settings)
        self._pipeline, self._variables, self._master = pipeline, variables, master
        self.folder = folder
        self.dags, self.functions, self.files = (folder / name for name in ("dags", "functions", "files"))
        self._record = folder / "passed"
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def dsn(self) -> str:
        """The database of the runs, with the ledger's login."""
        return self._stack.postgres.dsn(_DATABASE)

    @property
    def kafka(self) -> dict[str, str]:
        """The properties of the drill's Kafka."""
        return {SERVERS: self._stack.kafka.bootstrap_servers}

    def up(self, report: Callable[[str], None]) -> None:
        """Start both servers, not on the ports that a stack of the user's takes first."""
        self._end_orphans()
        if not self._stack.home.ports.exists():
            ports = random.sample(FALLBACK, 3)
            self._stack.home.ports.write_text(json.dumps(dict(zip(_SERVERS, ports, strict=True))))
        self._stack.up(("postgres", "kafka"), report=report)

    def down(self) -> None:
        """End what runs, and both servers."""
        self.end_runs()
        self._stack.down()

    def fill(self, partitions: Mapping[str, int], records: Iterable[tuple[str, int, Outgoing]]) -> int:
        """Make all topics, and send the copied records to them; returns their number."""
        from kafka.errors import UnknownTopicOrPartitionError

        with self._admin() as admin:
            for topic in [name for name in admin.list_topics() if not name.startswith("__")]:
                with suppress(UnknownTopicOrPartitionError):
                    admin.delete_topics([topic])
            admin.create_topics(_topics(partitions), wait_for_metadata=True)
        return self._send("copying records", records)

    def prepare(self, definitions: str) -> list[str]:
        """Make the database that every run begins with; returns what of the targets' definitions was refused.

        Raises:
            StackError: the pipeline's tables cannot be made.
        """
        self._stack.postgres.make_database(_BASE)
        base = self._stack.postgres.dsn(_BASE)
        upgrade(base)
        refused = []
        if definitions:
            done = client([str(binaries() / "psql"), "--no-psqlrc", "--quiet", "--file=-"], base, definitions)
            refused = [line.partition("ERROR:")[2].strip() for line in done.stderr.splitlines() if "ERROR:" in line]
        made = self._call(("migrate", self._pipeline.name), _BASE, {})
        if made.code != 0:
            raise StackError(f"the drill's tables could not be made: {made.said}")
        return refused

    def reset(self, partitions: Mapping[str, int]) -> None:
        """Begin again: a fresh database, empty topics of the sinks, no group, no marker, no files."""
        from kafka.errors import KafkaError, UnknownTopicOrPartitionError

        with closing(psycopg2.connect(self._stack.postgres.superuser_dsn)) as session:
            session.autocommit = True
            change(session, "DROP DATABASE IF EXISTS {new} WITH (FORCE)", new=_DATABASE)
            change(session, "CREATE DATABASE {new} TEMPLATE {base} OWNER epochline", new=_DATABASE, base=_BASE)
        written = {topic: partitions.get(topic, 1) for sink in self._pipeline.topics for topic in sink.topics}
        with self._admin() as admin:
            for topic in written:
                with suppress(UnknownTopicOrPartitionError):
                    admin.delete_topics([topic])
            with suppress(KafkaError):
                admin.delete_groups([self._pipeline.consumer_group])
            if written:
                admin.create_topics(_topics(written), wait_for_metadata=True)
            marked = CONTROL_TOPIC in admin.list_topics()
        if marked:
            self._forget_markers()
        shutil.rmtree(self.files, ignore_errors=True)
        self.files.mkdir(mode=0o700)  # The home of root's stack can be entered by anybody.

    def _forget_markers(self) -> None:
        keys = (Marker.key(self._pipeline.name, sink.name) for sink in self._pipeline.topics)
        self._send("forgetting markers", ((CONTROL_TOPIC, 0, Outgoing(key, None)) for key in keys))

    def _send(self, doing: str, records: Iterable[tuple[str, int, Outgoing]]) -> int:
        """Send records, each to its topic and partition; returns their number once Kafka has all."""
        reports, sent = Reports(self.kafka, SOURCE), 0
        producer = new_producer(self.kafka, reports, {"client.id": "epochline-drill"})
        try:
            queue = RecordQueue(producer, reports, doing)
            for topic, partition, record in records:
                queue.put(topic, record, partition)
                sent += 1
            queue.settle()
        finally:
            discard(producer)
        return sent

    def run(self, most: int, fault: str | None = None) -> Ran:
        """Run the pipeline as its next run would be made, until nothing is left to read.

        Args:
            most: offsets in one epoch.
            fault: a failpoint, with the number of the pass, at which the first process that passes it is killed; None
                to run undisturbed, and to record what is passed.
        """
        self._record.write_text("")
        named = f"{fault}:exit:once" if fault else ",".join(f"{name}:sleep:0" for name in sorted(known_failpoints()))
        arguments = ("run", self._pipeline.name, "--until-caught-up", "--max-records", str(most), "--json")
        ran = self._call((*arguments, "--master", self._master), _DATABASE, {NAMED: named, RECORD: str(self._record)})
        return Ran(code=ran.code, seconds=ran.seconds, said=ran.said, passed=tuple(self._record.read_text().split()))

    def expire_leases(self) -> None:
        """Let the next run take over what a killed run left, without the minute that its lease lasts."""
        with closing(psycopg2.connect(self.dsn)) as session, session, session.cursor() as cursor:
            cursor.execute("UPDATE epochline.epoch SET lease_until = clock_timestamp() WHERE state = 'PLANNED'")

    def _call(self, arguments: Sequence[str], database: str, more: Mapping[str, str]) -> Ran:
        command = [sys.executable, "-c", "from epochline.cli import main; main()", *arguments]
        begun = time.monotonic()
        log = self.folder / "logs" / "run.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, env={**self._environment(database), **more}, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=out, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        try:
            code: int | None = process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
            self.end_runs()
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        said = f"it was ended after {RUN_SECONDS} s" if code is None else lines[-1] if lines else ""
        return Ran(code=code, seconds=time.monotonic() - begun, said=said, passed=())

    def end_runs(self) -> None:
        """End every run with what it started. Spark's processes stay in the session of their run, also after a kill."""
        sessions = {process.pid for process in self._started}
        for process in psutil.process_iter() if sessions else ():
            with suppress(psutil.Error, OSError):
                if os.getsid(process.pid) in sessions:
                    process.kill()
        for one in self._started:
            one.wait()
        self._started.clear()

    def _end_orphans(self) -> None:
        """End the run of a drill that was killed itself, which would work beside the next one."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(RECORD) == str(self._record):
                    process.kill()

    def _environment(self, database: str) -> dict[str, str]:
        named = (*_KEPT, *self._variables)
        kept = {name: value for name, value in os.environ.items() if name in named or name.startswith("LC_")}
        path = [str(self.functions), str(functions_folder()), *filter(None, [kept.get("PYTHONPATH")])]
        kept |= {
            "EPOCHLINE_HOME": str(self.folder), "EPOCHLINE_DAGS": str(self.dags), "PYTHONPATH": os.pathsep.join(path),
            "EPOCHLINE_PROJECT": str(project_folder()), "AIRFLOW_HOME": str(self.folder / "no-airflow"),
        }  # fmt: skip
        if "EPOCHLINE_SETTINGS" in os.environ:
            kept["EPOCHLINE_SETTINGS"] = os.environ["EPOCHLINE_SETTINGS"]
        pipeline, postgres = self._pipeline, self._stack.postgres
        ids = {pipeline.postgres_connection: postgres.dsn(database)}
        if pipeline.writer_connection is not None:
            ids[pipeline.writer_connection] = postgres.dsn(database, login=JOB)
        brokers = json.dumps({"conn_type": "kafka", "extra": self.kafka})
        ids |= {source.connection: brokers for source in pipeline.kafka_sources.values()}
        ids |= {sink.connection: brokers for sink in pipeline.topics}
        return {**kept, **{f"AIRFLOW_CONN_{name.upper()}": url for name, url in ids.items()}}

    def _admin(self) -> Any:
        from kafka import KafkaAdminClient

        return closing(KafkaAdminClient(bootstrap_servers=self._stack.kafka.bootstrap_servers))


def _topics(partitions: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    return {
        topic: {"num_partitions": count, "replication_factor": 1, "configs": _TAKE_ANY}
        for topic, count in partitions.items()
    }
