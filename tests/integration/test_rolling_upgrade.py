"""F56: two versions of the package at once, each in its own environment and process, on one ledger with an epoch in flight.

A version takes a step of an epoch, another one the next. The ledger is migrated between any two of them, or while one
of them stands still. Whatever the ledger does not allow changes nothing; in the end each record is in every sink once.
"""

import itertools
import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from epochline.config.discovery import find
from epochline.declare.names import consumer_group
from epochline.ports import Transaction
from tests.checker import assert_exact
from tests.commands import kafka_connection
from tests.crash.line import Line
from tests.crash.reliability import Recovery
from tests.crash.watching import ends
from tests.databases import as_connection, query
from tests.integration.kafka_topics import group_offsets, make_topic
from tests.processes import version
from tests.waiting import is_stopped, wait_for
from tests.wheels import OLDER, RELEASED, Installed, installation, of_commit, this_checkout

DECLARED = """
from epochline import Files, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Text, epoch_dag

COLUMNS = {{"value": "text"}}
pipeline = Pipeline(
    name="{name}",
    source=KafkaSource(topics="{name}", startup="earliest"),
    parse=Text(),
    sinks=[
        PostgresTable(table="{name}", columns=COLUMNS),
        KafkaTopic(topic="{name}-out", value=Text()),
        Files(path="{folder}/files", columns=COLUMNS),
    ],
    bad_records="quarantine",
)
dag = epoch_dag(pipeline)
"""
STEPS = ("plan", "begin", "stage", "seal", "commit", "publish", "announce")
"""Of an epoch. The task that begins an attempt seals it, too; the job that stages it is another process."""

OF_FAILURE = ["error", "error_class", "error_command", "failed_at"]
"""What is noted of a refusal at an attempt; ``plan_failure`` has that of a plan."""

REFUSALS = ("epochline migrate", "allows epochline", "needs 00")
_numbers = itertools.count(1)


def of_next(oldest: str, folder: Path) -> None:
    """What a later release is made of: this code, and a migration that allows an oldest version."""
    this_checkout(folder)
    package = folder / "include" / "epochline"
    (package / "declare" / "version.py").write_text('VERSION = "9.0.0"\n')
    versions = package / "postgres" / "ledger" / "migrations" / "versions"
    head = max(script.name[:4] for script in versions.glob("*.sql"))
    rule = f"UPDATE epochline.alembic_version SET oldest_version = '{oldest}'"
    (versions / f"{int(head) + 1:04}_next.sql").write_text(rule)


FILLED: Mapping[str, Callable[[Path], object]] = {
    "0.1.0": of_commit(OLDER),
    "0.2.0": of_commit(RELEASED),
    "this": this_checkout,
    "next": partial(of_next, "9.0.0"),
    "next, compatible": partial(of_next, "0.2.0"),
}
"""What the wheel of each version is built of."""


class Process:
    """A process of a version, which takes the steps that it is asked for."""

    def __init__(self, name: str, package: Installed, folder: Path) -> None:
        self.python, self.asks = package.python, name != "0.1.0"
        self.loose = () if self.asks else ("epochline.mirror", "the group", "the files")
        environment = package.environment({"EPOCHLINE_HOME": str(folder / "no stack")})
        with (folder / name).open("w") as said:
            self._process = subprocess.Popen(
                [package.python, "-P", version.__file__], cwd=folder, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._answers, self.pid = self._process.stdin, self._process.stdout, self._process.pid

    def ask(self, step: str, **given: object) -> None:
        self._asked.write(json.dumps({"step": step, **given}) + "\n")
        self._asked.flush()

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._answers.readline())
        return answer

    @property
    def has_answered(self) -> bool:
        return bool(select.select([self._answers], [], [], 0)[0])

    def do(self, step: str, **given: object) -> dict[str, Any]:
        self.ask(step, **given)
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Two(Line):
    """A pipeline of two versions, whose ledger the older one made, and what was produced for it."""

    run_id: str
    epoch: int | None
    began: dict[Process, int]
    """The newest attempt that each process has begun of the run's epoch."""

    def __init__(self, dsn: str, bootstrap: str, folder: Path, older: Process, newer: Process) -> None:
        super().__init__(dsn, bootstrap, partitions=0)
        self.older, self.newer, self.folder = older, newer, folder / self.name
        self.folder.mkdir()
        (self.folder / "dag.py").write_text(DECLARED.format(name=self.name, folder=self.folder))
        self.pipeline = find(self.name, self.folder)
        for topic in (self.name, f"{self.name}-out"):
            make_topic(bootstrap, topic)
        query(dsn, "DROP SCHEMA epochline, epochline_staging CASCADE")
        self.new_run()
        self.took(older, "migrate")
        self.took(older, "create")
        self.feed()

    def feed(self) -> None:
        self.produce({0: [*(f"record {next(_numbers)}" for _ in range(5)), b"\xff not UTF-8"]})

    def use(self, process: Process, failpoint: str = "", **more: str) -> None:
        """Let the process go on with this pipeline and run, whose steps it then takes."""
        connections = {
            **more,
            "EPOCHLINE_DAGS": str(self.folder),
            "AIRFLOW_CONN_EPOCHLINE_POSTGRES": as_connection(self.dsn),
            "AIRFLOW_CONN_EPOCHLINE_KAFKA": kafka_connection(self.bootstrap),
        }
        done = process.do("use", pipeline=self.name, run=self.run_id, failpoint=failpoint, **connections)
        assert "did" in done, done

    def new_run(self) -> None:
        self.run_id, self.epoch, self.began = f"run-{next(self.runs)}", None, {}
        for process in (self.newer, self.older):
            self.use(process)

    # Steps.

    def given(self, step: str) -> dict[str, object]:
        number = {"attempt": max(self.began.values(), default=0)} if step == "stage" else {}
        return {"epoch": self.epoch, **number} if step in ("begin", "stage", "seal", "commit", "abort") else {}

    def took(self, process: Process, step: str) -> Any:
        """A step that succeeds."""
        return self.noted(process, step, process.do(step, **self.given(step)))

    def noted(self, process: Process, step: str, answer: Mapping[str, Any]) -> Any:
        assert "did" in answer, (step, answer)
        if step == "plan":
            self.epoch = answer["did"]
        if step == "begin" and answer["did"]:
            self.began[process] = answer["did"]
        return answer["did"]

    def whole(self, *processes: Process) -> None:
        """An epoch of a run of its own, each step by the process that it is given for; the last one takes the rest."""
        self.feed()
        self.new_run()
        for step, process in itertools.zip_longest(STEPS, processes, fillvalue=processes[-1]):
            self.took(process, str(step))

    def goes_on(self, process: Process, refused: Process) -> None:
        """The rest of the run's epoch, as its tasks would find it, while the other version tries the same."""
        planned = self.took(process, "plan")
        begun = planned and self.took(process, "begin")
        for step in STEPS[2 if begun else 4 if planned else 5 :]:
            self.took(process, step)
            self.refused(refused, step, "abort")

    def refused(self, process: Process, *steps: str) -> None:
        """Steps that the ledger does not allow this version: they change nothing, and say so.

        0.1.0 asks no ledger, so a step of it that has nothing to do may end well. It may mirror the ledger's heads
        again, and leave files in staging: neither decides anything.
        """
        before = self.everything(*process.loose)
        for step in steps:
            if step == "seal" and process not in self.began:
                continue  # The process has no ticket: a task seals what it began.
            answer = process.do(step, **self.given(step))
            assert self.everything(*process.loose) == before, (step, answer)
            assert not process.asks or any(text in answer.get("said", "") for text in REFUSALS), (step, answer)

    def whole_again(self, process: Process, recovery: Recovery) -> None:
        """What the fault left is as it should be, and one more epoch as well."""
        assert_exact(self)
        recovery.took()
        self.whole(process)
        assert_exact(self)

    # What is there.

    def everything(self, *loose: str) -> Mapping[str, Any]:
        """All that a step may change, the database, Kafka and files, but for what these names say."""
        found = {
            "the group": group_offsets(self.bootstrap, consumer_group(self.name)),
            "the topic": ends(self.bootstrap, f"{self.name}-out", "read_uncommitted"),
            "the files": sorted(map(str, self.folder.glob("files/**/*"))),
        }
        return {**self.in_database(*loose), **{name: one for name, one in found.items() if name not in loose}}

    def in_database(self, *loose: str) -> Mapping[str, Any]:
        """The rows of ledger, staging, outboxes and targets, but for what is noted of a refusal."""
        rows = "SELECT (to_jsonb(t) - %s)::text FROM {} t ORDER BY 1"
        tables = {name for (name,) in self.query(TABLES)} - {*loose}
        return {name: self.query(rows.format(name), OF_FAILURE) for name in tables}


TABLES = """
SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname <> 'plan_failure'
    AND relnamespace::regnamespace::text IN ('epochline', 'epochline_staging', 'epochline_outbox', 'public')
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Process]]:
    """A process of each version in its environment, made when it is first asked for."""
    made, folder = dict[str, Process](), tmp_path_factory.mktemp("processes")
    with ExitStack() as opened:

        def process(name: str) -> Process:
            if name not in made:
                made[name] = Process(name, opened.enter_context(installation(FILLED[name])), folder)
                opened.callback(made[name].end)
            return made[name]

        yield process


NewTwo = Callable[[str, str], Two]


@pytest.fixture
def line(
    processes: Callable[[str], Process], new_database: Callable[[], str], kafka_bootstrap: str, tmp_path: Path
) -> NewTwo:
    """Makes a pipeline of two versions."""
    return lambda older, newer: Two(new_database(), kafka_bootstrap, tmp_path, processes(older), processes(newer))


def cases() -> Iterator[Any]:
    """Each older version, with a step before which the ledger is migrated. One case is for CI."""
    for older, at in itertools.product(("this", "0.1.0", "0.2.0"), range(len(STEPS) + 1)):
        marks = () if (older, STEPS[at : at + 1]) == ("this", ("commit",)) else pytest.mark.slow
        where = f"before {STEPS[at]}" if at < len(STEPS) else "at the end"
        yield pytest.param(older, at, marks=marks, id=f"{older}, {where}")


@pytest.mark.fault("F56")
@pytest.mark.parametrize(("older", "place"), [*cases()])
def test_a_migration_between_two_steps_ends_the_work_of_the_older_version(
    line: NewTwo, older: str, place: int, recovery: Recovery
) -> None:
    """INV-1, INV-4, INV-6: until the migration the newer version changes nothing, after it the older one."""
    one = line(older, "this" if older == "0.1.0" else "next")
    for step in STEPS[:place]:
        one.refused(one.newer, step)
        one.took(one.older, step)
    one.took(one.newer, "migrate")
    recovery.last_fault()

    one.refused(one.older, *(STEPS if one.epoch else ["plan"]), "abort", "tidy")
    one.goes_on(one.newer, one.older)

    one.whole_again(one.newer, recovery)


@pytest.mark.slow
@pytest.mark.parametrize(("older", "newer"), [("0.2.0", "this"), ("this", "next, compatible")])
def test_versions_that_the_ledger_allows_take_the_steps_of_an_epoch_in_any_mixture(
    line: NewTwo, older: str, newer: str
) -> None:
    """INV-1, INV-6: which of them plans, begins and seals, stages, commits, publishes makes no difference to a row."""
    one = line(older, newer)
    one.took(one.newer, "migrate")

    for plan, task, job, commit, publish in itertools.product((one.older, one.newer), repeat=5):
        one.whole(plan, task, job, task, commit, publish)

    assert_exact(one)
    assert query(one.dsn, "SELECT count(*), max(attempt) FROM epochline.epoch") == [(32, 1)]


@pytest.mark.slow
@pytest.mark.fault("F56")
@pytest.mark.parametrize("left", STEPS[1:5])
@pytest.mark.parametrize("turned", [False, True], ids=["older first", "newer first"])
def test_a_retry_and_an_abort_by_another_version_that_the_ledger_allows(
    line: NewTwo, left: str, turned: bool, recovery: Recovery
) -> None:
    """INV-3, INV-4, INV-7: the first version's attempt is lost before a step; its zombie changes nothing."""
    one = line("0.2.0", "this")
    first, second = (one.newer, one.older) if turned else (one.older, one.newer)
    for step in STEPS[: STEPS.index(left)]:
        one.took(first, step)
    recovery.last_fault()

    if left == "commit":
        assert one.took(second, "abort") == "left_for_recovery"
    else:  # a retry, whose attempt is staged while the zombie goes on
        one.took(second, "begin")
        one.took(second, "stage")
        for step in ("stage", "seal"):
            before = one.everything()
            answer = first.do(step, **{**one.given(step), **({"attempt": 1} if step == "stage" else {})})
            assert "error" in answer
            assert one.everything() == before
        assert one.took(second, "abort") == "aborted"
        for step in STEPS[:4]:
            one.took(first, step)
    for step in STEPS[4:]:
        one.took(second, step)
        one.took(first, step)

    one.whole_again(first, recovery)


@pytest.mark.slow
@pytest.mark.fault("F56")
@pytest.mark.parametrize("step", STEPS)
def test_a_migration_while_the_older_version_stands_anywhere_in_a_step(
    line: NewTwo, tmp_path: Path, step: str, recovery: Recovery
) -> None:
    """INV-2, INV-6: at each call on a server. What it does afterwards is whole before the migration, or is refused."""
    for failpoint in passed_in(line("this", "next"), step, tmp_path / "record"):
        migrate_at(failpoint, step, line("this", "next"), recovery)


def migrate_at(failpoint: str, step: str, one: Two, recovery: Recovery) -> None:
    for done in STEPS[: STEPS.index(step)]:
        one.took(one.older, done)
    one.use(one.older, failpoint=f"{failpoint}@1:stop")
    one.older.ask(step, **one.given(step))
    wait_for(f"the older version stands at {failpoint}", partial(is_stopped, one.older.pid))

    one.newer.ask("migrate")
    wait_for("the migration has ended, or waits", lambda: one.newer.has_answered or one.query(WAITS))
    seen = one.in_database() if one.newer.has_answered else None
    os.kill(one.older.pid, signal.SIGCONT)
    answer = one.older.answer()
    assert "did" in one.newer.answer()
    recovery.last_fault()

    assert seen in (None, one.in_database()), (failpoint, answer)
    if "did" in answer:
        one.noted(one.older, step, answer)
    one.use(one.older)
    one.refused(one.older, *(STEPS if one.epoch else ["plan"]), "tidy")
    one.goes_on(one.newer, one.older)
    one.whole_again(one.newer, recovery)


WAITS = """
SELECT 1 FROM pg_locks
    WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def passed_in(one: Two, step: str, record: Path) -> list[str]:
    """The failpoints that the older version passes in a step of an epoch, without those inside a transaction.

    A transaction holds what the migration waits for from its first message on, whatever it calls; and the moment before
    it is opened is that after the former one.
    """
    for before in STEPS[: STEPS.index(step)]:
        one.took(one.older, before)
    every = ",".join(f"{name}:sleep:0" for name in one.took(one.older, "failpoints"))
    one.use(one.older, failpoint=every, EPOCHLINE_FAILPOINT_RECORD=str(record))
    one.took(one.older, step)
    one.use(one.older)
    same = {"transaction", *vars(Transaction)}
    return [name for name in dict.fromkeys(record.read_text().split()) if name.split(".")[1] not in same]


@pytest.mark.slow
@pytest.mark.fault("F56")
@pytest.mark.parametrize(
    ("driver", "worker"), [("next, compatible", "this"), ("next, compatible", "0.2.0"), ("this", "next, compatible")]
)
def test_a_worker_of_spark_with_another_version_than_its_driver_refuses_the_job_by_name(
    line: NewTwo, processes: Callable[[str], Process], driver: str, worker: str, recovery: Recovery
) -> None:
    """INV-4: what the driver pickled would be put into the fields of other classes. The ledger allows both versions."""
    one = line("this", "next, compatible")
    one.took(one.newer, "migrate")
    process = processes(driver)
    one.took(one.older, "plan")
    one.took(process, "begin")
    before = one.in_database()

    answer = process.do("submit", epoch=1, attempt=1, python=str(processes(worker).python))
    recovery.last_fault()

    assert answer["error"] == "VersionError"
    assert "the driver of this job has epochline" in answer["said"]
    assert one.in_database() == before
    one.took(process, "begin")
    assert "did" in process.do("submit", epoch=1, attempt=2, python=str(process.python))
    for step in STEPS[3:]:
        one.took(process, step)
    assert_exact(one)
    recovery.took()
