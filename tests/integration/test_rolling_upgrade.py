"""Two versions of the package at once, each in its own environment and process, on one ledger with an epoch in flight.

In these tests a version takes a step of an epoch, another one the next, and the ledger is migrated between any two of
them, or while one of them stands still. Whatever the ledger does not allow changes nothing; in the end each record is
in every sink once.
"""

import itertools
import json
import os
import select
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from epochline.declare.names import consumer_group
from tests.chains import chain_breaks
from tests.commands import kafka_connection
from tests.crash.reliability import Recovery
from tests.databases import as_connection, query
from tests.integration.kafka_topics import make_topic, produce, read_topic
from tests.processes import version
from tests.reading import rows_in_folder
from tests.waiting import is_stopped, wait_for
from tests.wheels import OLDER, RELEASED, Installed, installation, of_commit, this_checkout

DECLARED = """
from epochline import Files, Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable, epoch_dag

COLUMNS = {{
    "id": "bigint", "who": "uuid", "free": "numeric", "price": "numeric(12,2)", "host": "inet", "body": "jsonb",
    "at": "timestamptz",
}}
SHOWN = {{"id": "bigint", "price": "numeric(12,2)"}}
pipeline = Pipeline(
    name="{name}",
    source=KafkaSource(topics="{name}", startup="earliest"),
    parse=Json(columns=COLUMNS),
    sinks=[
        PostgresTable(table="{name}", columns=COLUMNS),
        PostgresTable(table="{name}_last", columns=COLUMNS, mode="upsert", key="id"),
        KafkaTopic(topic="{name}-out", value=Json(columns=SHOWN)),
        Files(path="{folder}", columns=SHOWN),
    ],
    bad_records="quarantine",
)
dag = epoch_dag(pipeline)
"""
STEPS = ("plan", "begin", "stage", "seal", "commit", "publish", "announce")
"""Of an epoch. The task that begins an attempt seals it, too; the job that stages it is another process."""

OF_FAILURE = ["error", "error_class", "error_command", "failed_at"]
"""What 0.1.0 notes of its refusal, at the attempt and as the failure of a plan."""

NEW_RULE = """
UPDATE epochline.alembic_version SET oldest_version = '{oldest}';
"""
_numbers = itertools.count(1)


def of_next(oldest: str, folder: Path) -> None:
    """What a later release is made of: this code, a migration that allows an oldest version, and a field of its own."""
    this_checkout(folder)
    package = folder / "include" / "epochline"
    (package / "declare" / "version.py").write_text('VERSION = "9.0.0"\n')
    versions = package / "postgres" / "ledger" / "migrations" / "versions"
    head = max(script.name[:4] for script in versions.glob("*.sql"))
    (versions / f"{int(head) + 1:04}_next.sql").write_text(NEW_RULE.format(oldest=oldest))


FILLED: Mapping[str, Callable[[], Callable[[Path], object]]] = {
    "0.1.0": lambda: of_commit(OLDER),
    "0.2.0": lambda: of_commit(RELEASED),
    "this": lambda: this_checkout,
    "next": lambda: partial(of_next, "9.0.0"),
    "next, compatible": lambda: partial(of_next, "0.2.0"),
}
"""What the wheel of each version is built of."""


@cache
def client(bootstrap: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "looks"})


@cache
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


class Process:
    """A process of a version, which takes the steps that it is asked for."""

    def __init__(self, name: str, package: Installed, project: Path) -> None:
        self.package, self.asks = package, name != "0.1.0"
        environment = package.environment({"EPOCHLINE_HOME": str(project / "no stack")})
        with (project / f"{name}.log").open("a") as said:
            self._process = subprocess.Popen(
                [package.python, "-P", version.__file__], cwd=project, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            )  # fmt: skip
        self.pid = self._process.pid

    def ask(self, step: str, **given: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"step": step, **given}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    @property
    def has_answered(self) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def do(self, step: str, **given: object) -> dict[str, Any]:
        self.ask(step, **given)
        return self.answer()

    def end(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._process.kill()
        self._process.communicate()


@dataclass
class Line:
    """A pipeline of two versions, and what was produced for it."""

    older: Process
    newer: Process
    name: str
    dsn: str
    bootstrap: str
    files: Path
    run: str = "run-1"
    epoch: int | None = None
    attempt: int | None = None
    produced: list[dict[str, Any]] = field(default_factory=list)
    began: set[tuple[Process, int | None]] = field(default_factory=set)

    def use(self, process: Process, run: str | None = None, failpoint: str = "", **more: str) -> None:
        self.run = run or self.run
        connections = {
            **more,
            "AIRFLOW_CONN_EPOCHLINE_POSTGRES": as_connection(self.dsn),
            "AIRFLOW_CONN_EPOCHLINE_KAFKA": kafka_connection(self.bootstrap),
        }
        done = process.do("use", pipeline=self.name, run=self.run, failpoint=failpoint, **connections)
        assert "did" in done, done

    def new_run(self) -> None:
        self.epoch = self.attempt = None
        for process in (self.older, self.newer):
            self.use(process, f"run-{next(_numbers)}")

    def produce(self, count: int = 9) -> None:
        new = [
            {
                "id": at % 4, "who": f"00000000-0000-4000-8000-{at:012}", "free": f"{at}.{'0' * (at % 5)}1{'0' * (at % 3)}",
                "price": f"{at}.50", "host": f"10.0.0.{at % 200}/{24 if at % 2 else 32}", "body": {"at": at, "text": "ü\n"},
                "at": f"2026-01-02T03:04:{at % 60:02}.{at:06}+00:00",
            }
            for at in range(len(self.produced), len(self.produced) + count)
        ]  # fmt: skip
        produce(self.bootstrap, self.name, [json.dumps(one).encode() for one in new], partition=0)
        self.produced += new

    # Steps.

    def given(self, step: str) -> dict[str, object]:
        if step == "stage":
            return {"epoch": self.epoch, "attempt": self.attempt}
        return {"epoch": self.epoch} if step in ("begin", "seal", "commit", "abort") else {}

    def took(self, process: Process, step: str) -> Any:
        """A step that succeeds."""
        return self.noted(process, step, process.do(step, **self.given(step)))

    def noted(self, process: Process, step: str, answer: Mapping[str, Any]) -> Any:
        assert "did" in answer, (step, answer)
        if step == "plan":
            self.epoch = answer["did"]
        if step == "begin":
            self.attempt = answer["did"]
            self.began.add((process, self.epoch))
        return answer["did"]

    def whole(self, *processes: Process) -> None:
        """An epoch of a run of its own, each step by the process that it is given for; the last one takes the rest."""
        self.new_run()
        for step, process in itertools.zip_longest(STEPS, processes, fillvalue=processes[-1]):
            self.took(process, step)  # type: ignore[arg-type]

    def goes_on(self, process: Process) -> None:
        """The rest of the run's epoch, as its tasks would find it."""
        if self.took(process, "plan") is not None:
            if self.took(process, "begin") is not None:
                self.took(process, "stage")
                self.took(process, "seal")
            self.took(process, "commit")
        self.took(process, "publish")
        self.took(process, "announce")

    def refused(self, process: Process, *steps: str, named: bool = False) -> None:
        """Steps that the ledger does not allow this version: they change nothing, and say so.

        0.1.0 asks no ledger. Unless ``named``, a step of it that has nothing to do may end well, or say that. It may
        mirror the ledger's heads again, and leave files in staging: neither decides anything.
        """
        loose = () if process.asks else (*OF_MIRROR, "the files")
        for step in steps:
            if step == "seal" and (process, self.epoch) not in self.began:
                continue  # The process has no ticket: a task seals what it began.
            before = without(self.everything(), *loose)
            answer = process.do(step, **self.given(step))
            assert without(self.everything(), *loose) == before, (step, answer)
            assert not (named or process.asks) or any(text in answer.get("said", "") for text in REFUSALS), (
                step,
                answer,
            )

    # What is there.

    def everything(self) -> Mapping[str, Any]:
        """All that a step may change: the database, Kafka, files."""
        found: dict[str, Any] = {**self.in_database()}
        found["the group"] = wait_for("a broker has the group", self.mirrored)
        found["the topic"] = client(self.bootstrap).get_watermark_offsets(TopicPartition(f"{self.name}-out", 0), 30)
        found["the files"] = sorted(str(path) for path in self.files.rglob("*"))
        return found

    def mirrored(self) -> tuple[object, ...]:
        """What the consumer group shows; nothing from a broker that has just started."""
        asked = ConsumerGroupTopicPartitions(consumer_group(self.name), [TopicPartition(self.name, 0)])
        with suppress(KafkaException):
            [answer] = admin(self.bootstrap).list_consumer_group_offsets([asked]).values()
            return asked.group_id, *((one.offset, one.metadata) for one in answer.result(30).topic_partitions)
        return ()

    def in_database(self) -> Mapping[str, Any]:
        """The rows of ledger, staging, outboxes and targets, but for what 0.1.0 notes of its refusal."""
        with closing(psycopg2.connect(self.dsn)) as session, session.cursor() as cursor:
            cursor.execute(TABLES)
            found = {}
            for (name,) in cursor.fetchall():
                cursor.execute(f"SELECT (to_jsonb(t) - %s)::text FROM {name} t ORDER BY 1", [OF_FAILURE])
                found[name] = cursor.fetchall()
            return found

    def assert_exact(self) -> None:
        """Each sink against what was produced; one chain; nothing is left."""
        last = {one["id"]: one for one in self.produced}
        for table, expected in ((self.name, self.produced), (f"{self.name}_last", [*last.values()])):
            rows = query(self.dsn, f"SELECT {', '.join(f'{name}::text' for name in self.produced[0])} FROM {table}")
            assert Counter(rows) == Counter(map(self.row, expected))
        shown = Counter((one["id"], one["price"]) for one in self.produced)
        sent = [json.loads(record.value) for record in read_topic(self.bootstrap, f"{self.name}-out")]
        assert Counter((one["id"], f"{float(one['price']):.2f}") for one in sent) == shown
        filed = rows_in_folder(str(self.files), "parquet")
        assert Counter((row["id"], str(row["price"])) for row in filed) == shown
        ranges = query(self.dsn, "SELECT start_offset, until_offset FROM epochline.committed_range")
        assert chain_breaks(ranges) == []
        assert query(self.dsn, LEFT) == []

    def row(self, one: Mapping[str, Any]) -> tuple[str, ...]:
        """A record as PostgreSQL itself writes its values as texts."""
        texts = {**one, "body": json.dumps(one["body"])}
        asked = "SELECT %s::bigint::text, %s::uuid::text, %s::numeric::text, %s::numeric(12,2)::text, %s::inet::text,"
        [row] = query(self.dsn, f"{asked} %s::jsonb::text, %s::timestamptz::text", *texts.values())
        return row


OF_MIRROR = ("epochline.mirror", "the group")


def without(found: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return {name: one for name, one in found.items() if name not in names}


TABLES = """
SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname <> 'plan_failure'
    AND relnamespace::regnamespace::text IN ('epochline', 'epochline_staging', 'epochline_outbox', 'public') ORDER BY 1
"""

LEFT = """
SELECT 'staging', relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'epochline_staging'::regnamespace
UNION ALL SELECT state, epoch_id::text FROM epochline.epoch WHERE state IN ('PLANNED', 'PRE_COMMITTED')
UNION ALL SELECT state, sink FROM epochline.receipts WHERE state <> 'SHOWN'
"""
"""Staging, unfinished epochs and receipts that are not shown."""

REFUSALS = ("epochline migrate", "allows epochline", "needs 00")


@pytest.fixture(scope="module")
def wheels() -> Iterator[Callable[[str], Installed]]:
    """Environments of the versions, each made when it is first asked for."""
    made: dict[str, Installed] = {}
    with ExitStack() as opened:

        def environment(name: str) -> Installed:
            if name not in made:
                made[name] = opened.enter_context(installation(FILLED[name]()))
            return made[name]

        yield environment


@pytest.fixture(scope="module")
def processes(
    wheels: Callable[[str], Installed], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Process]]:
    """A process of each version, which stays while its tests run: they have the same project, and each its pipeline."""
    project, made = tmp_path_factory.mktemp("project"), dict[str, Process]()
    (project / "dags").mkdir()

    def process(name: str) -> Process:
        if name not in made:
            made[name] = Process(name, wheels(name), project)
        return made[name]

    yield process
    for one in made.values():
        one.end()


@pytest.fixture
def line(
    processes: Callable[[str], Process],
    new_database: Callable[[], str],
    kafka_bootstrap: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, str], Line]]:
    """A new pipeline of two versions, whose ledger the older one made."""
    with ExitStack() as opened:

        def new(older: str, newer: str) -> Line:
            dsn, name = new_database(), f"rolling_{os.getpid()}_{next(_numbers)}"
            query(dsn, "DROP SCHEMA epochline, epochline_staging CASCADE")
            files = tmp_path_factory.mktemp("files")
            project = files.parent / "project0"
            declared = project / "dags" / f"{name}.py"
            declared.write_text(DECLARED.format(name=name, folder=files))
            opened.callback(declared.unlink)
            for topic in (name, f"{name}-out"):
                make_topic(kafka_bootstrap, topic)
            one = Line(processes(older), processes(newer), name, dsn, kafka_bootstrap, files)
            one.use(one.newer)
            one.use(one.older)
            one.took(one.older, "migrate")
            one.took(one.older, "create")
            one.produce()
            return one

        yield new


@pytest.mark.slow
@pytest.mark.fault("F56")
@pytest.mark.parametrize("place", range(len(STEPS) + 1), ids=lambda at: f"before {STEPS[at]}" if at < len(STEPS) else "at the end")  # fmt: skip
@pytest.mark.parametrize("older", ["0.1.0", "0.2.0", "this"])
def test_a_migration_between_two_steps_ends_the_work_of_the_older_version(
    line: Callable[[str, str], Line], older: str, place: int, recovery: Recovery
) -> None:
    """INV-1, INV-4, INV-6: until the migration the newer version changes nothing, after it the older one."""
    one = line(older, "this" if older == "0.1.0" else "next")
    for step in STEPS[:place]:
        one.refused(one.newer, step)
        one.took(one.older, step)
    one.took(one.newer, "migrate")
    recovery.last_fault()

    one.refused(one.older, *STEPS[place : place + 1], named=True)
    one.refused(one.older, *(STEPS if one.epoch else ["plan"]), "abort", "tidy")
    begun, *rest = STEPS[place:] or [None]
    # What the older version's task had begun is lost with it: the newer one's is the next attempt.
    for step in (["begin", "stage"] if begun == "seal" else ["begin"] if begun == "stage" else []) + [begun, *rest]:
        if step is not None:
            one.took(one.newer, step)
            one.refused(one.older, step, "abort")
    recovery.took()
    one.produce()
    one.whole(one.newer)
    one.assert_exact()


@pytest.mark.slow
@pytest.mark.parametrize(("older", "newer"), [("0.2.0", "this"), ("this", "next, compatible")])
def test_versions_that_the_ledger_allows_take_the_steps_of_an_epoch_in_any_mixture(
    line: Callable[[str, str], Line], older: str, newer: str
) -> None:
    """INV-1, INV-6: which of them plans, begins and seals, stages, commits, publishes makes no difference to a row."""
    one = line(older, newer)
    one.took(one.newer, "migrate")

    for plan, task, job, commit, publish in itertools.product((one.older, one.newer), repeat=5):
        one.produce()
        one.whole(plan, task, job, task, commit, publish)

    one.assert_exact()
    assert query(one.dsn, "SELECT count(*), max(attempt) FROM epochline.epoch") == [(32, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("left", STEPS[1:5])
@pytest.mark.parametrize("turned", [False, True], ids=["older first", "newer first"])
def test_a_retry_and_an_abort_by_another_version_that_the_ledger_allows(
    line: Callable[[str, str], Line], left: str, turned: bool
) -> None:
    """INV-3, INV-4, INV-7: the first version's attempt is lost before a step; its zombie changes nothing."""
    one = line("0.2.0", "this")
    first, second = (one.newer, one.older) if turned else (one.older, one.newer)
    for step in STEPS[: STEPS.index(left)]:
        one.took(first, step)
    sealed = left == "commit"

    if not sealed:  # a retry, whose attempt is staged while the zombie goes on
        one.took(second, "begin")
        one.took(second, "stage")
        for step in ("stage", "seal"):
            before = one.everything()
            answer = first.do(step, **{**one.given(step), **({"attempt": 1} if step == "stage" else {})})
            assert "error" in answer
            assert one.everything() == before
        assert one.took(second, "abort") == "aborted"
        assert one.took(first, "plan") == 1
        one.took(first, "begin")
        one.took(first, "stage")
        one.took(first, "seal")
    else:
        assert one.took(second, "abort") == "left_for_recovery"
    for step in STEPS[4:]:
        one.took(second, step)
        one.took(first, step)
    one.produce()
    one.whole(first, second)
    one.assert_exact()


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("older", "newer"), [("0.1.0", "this"), ("this", "next")])
def test_a_migration_while_the_older_version_stands_anywhere_in_a_step(
    line: Callable[[str, str], Line], tmp_path: Path, older: str, newer: str, step: str
) -> None:
    """INV-2, INV-6: at each call on a server. What it does afterwards is whole before the migration, or is refused."""
    before = STEPS[: STEPS.index(step)]
    for failpoint in passed_in(line(older, newer), step, tmp_path / "record"):
        one = line(older, newer)
        for done in before:
            one.took(one.older, done)
        one.use(one.older, failpoint=f"{failpoint}:stop")
        one.older.ask(step, **one.given(step))
        wait_for(f"the older version stands at {failpoint}", partial(is_stopped, one.older.pid))

        one.newer.ask("migrate")
        wait_for("the migration has ended, or waits", partial(has_answered_or_waits, one))
        waited = not one.newer.has_answered
        loose = () if one.older.asks else OF_MIRROR
        seen = None if waited else without(one.in_database(), *loose)
        os.kill(one.older.pid, signal.SIGCONT)
        answer = one.older.answer()
        assert "did" in one.newer.answer()

        assert waited or without(one.in_database(), *loose) == seen, (failpoint, answer)
        if "did" in answer:
            one.noted(one.older, step, answer)
        one.use(one.older)
        one.goes_on(one.newer)
        one.refused(one.older, *STEPS, "abort", "tidy")
        one.produce()
        one.whole(one.newer)
        one.assert_exact()


def passed_in(one: Line, step: str, record: Path) -> list[str]:
    """The failpoints that the older version passes in a step of an epoch."""
    for before in STEPS[: STEPS.index(step)]:
        one.took(one.older, before)
    every = ",".join(f"{name}:sleep:0" for name in one.took(one.older, "failpoints"))
    one.use(one.older, failpoint=every, EPOCHLINE_FAILPOINT_RECORD=str(record))
    one.took(one.older, step)
    one.use(one.older)
    return list(dict.fromkeys(record.read_text().split()))


def has_answered_or_waits(one: Line) -> bool:
    """Whether the newer version has answered, or a session of the database waits for a lock."""
    if one.newer.has_answered:
        return True
    asked = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    return bool(query(one.dsn, asked)[0][0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver", "worker"), [("next, compatible", "this"), ("next, compatible", "0.2.0"), ("this", "next, compatible")]
)
def test_a_worker_of_spark_with_another_version_than_its_driver_refuses_the_job_by_name(
    line: Callable[[str, str], Line], wheels: Callable[[str], Installed], driver: str, worker: str
) -> None:
    """INV-4: what the driver pickled would be put into the fields of other classes. The ledger allows both versions."""
    one = line("this", "next, compatible")
    one.took(one.newer, "migrate")
    process = one.newer if driver == "next, compatible" else one.older
    one.took(one.older, "plan")
    one.took(process, "begin")
    before = one.in_database()

    answer = process.do("submit", epoch=1, attempt=1, python=str(wheels(worker).python))

    assert answer["error"] == "VersionError"
    assert "the driver of this job has epochline" in answer["said"]
    assert one.in_database() == before
    one.took(process, "begin")
    assert "did" in process.do("submit", epoch=1, attempt=2, python=str(process.package.python))
    for step in STEPS[3:]:
        one.took(process, step)
    one.assert_exact()
