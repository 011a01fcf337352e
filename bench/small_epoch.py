"""How long a small epoch takes under Airflow, from its trigger to the end of its run, beside an empty DAG.

An epoch's job runs on the stack's Spark server, or in a driver that spark-submit starts for it. All run on one stack,
one after the other in each round. The empty DAG has four tasks that do nothing: it shows what Airflow itself takes. The
empty job is a ``spark-submit`` without Airflow, whose one task passes on one row. Structured Streaming runs all the
time with a trigger of one second (`bench.recipe`); its seconds are those from the last record in Kafka to the last row.
Afterwards nothing runs for a minute, and the processor's time of each part is what the stack takes when it is idle,
with a pipeline that data would wake.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import psycopg2

from bench.epochs import Bench, counted_rounds
from bench.processes import seconds_of_stack
from bench.recipe import Recipe
from bench.report import ROOT, measured_by, run, spread, table
from epochline.cli.airflow_access import access_to
from epochline.cli.airflow_api import AirflowApi
from epochline.cli.airflow_runs import FINISHED
from epochline.config.discovery import find
from epochline.local.stack import Stack

ROUNDS = 5
RECORDS = 1_000
IDLE_SECONDS = 60
PHASES = ("start", "stage", "seal", "commit", "publish")
EMPTY, WARM, SUBMITTED = "an empty DAG of four tasks", "an epoch on Spark's server", "an epoch by spark-submit"
EMPTY_JOB, STREAMING = "an empty job by spark-submit, without Airflow", "Structured Streaming, a trigger each second"
DAG_OF = {EMPTY: "bench_empty", WARM: "bench_warm", SUBMITTED: "bench_submitted"}
PIPELINES = (DAG_OF[WARM], DAG_OF[SUBMITTED])
STREAMED = "bench_streamed"
"""Topic and table of Structured Streaming."""
WAKING = "bench_waking"
"""A pipeline that data would wake. Nothing is produced for it: it makes the idle stack look at Kafka."""

DAGS = """
from datetime import timedelta

from airflow.sdk import dag, task

from epochline import Json, KafkaSource, Pipeline, PostgresTable, epoch_dag

COLUMNS = {"id": "bigint", "who": "text"}
for name, connection in {"bench_warm": "spark_default", "bench_submitted": "spark_submit"}.items():
    pipeline = Pipeline(
        name=name, source=KafkaSource(topics=name), parse=Json(columns=COLUMNS), spark_connection=connection,
        sinks=PostgresTable(table=name, columns=COLUMNS),
    )
    globals()[name] = epoch_dag(pipeline)

bench_waking = epoch_dag(Pipeline(
    name="bench_waking", source=KafkaSource(topics="bench_waking"), parse=Json(columns=COLUMNS),
    sinks=PostgresTable(table="bench_waking", columns=COLUMNS), wake_on_data=timedelta(seconds=10),
))


@dag(schedule=None)
def bench_empty():
    @task
    def nothing(after=None):
        return None

    nothing(nothing(nothing(nothing())))


bench_empty()
"""


class Airflow:
    """A stack whose Airflow has the DAGs of the bench."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.bench = Bench(stack, None)
        self.api = AirflowApi(access_to(stack), timeout=30.0)
        self._produced = 0
        self._recipe = Recipe(
            dsn=self.bench.dsn, kafka=self.bench.kafka, topic=STREAMED, table=STREAMED,
            columns={"id": "bigint", "who": "text"}, schema="id bigint, who string",
            checkpoint=str(stack.home.root / "recipe"),
        )  # fmt: skip

    def prepare(self) -> None:
        """Make topics and tables, and wait until Airflow has read the DAGs."""
        self.bench.make(*PIPELINES, WAKING, STREAMED, partitions=2)
        with self.bench.ledger.transaction() as tx:
            for name in (*PIPELINES, WAKING):
                tx.targets.create(find(name, self.stack.home.root / "bench_dags"))
        for dag in (*DAG_OF.values(), WAKING):
            while self.api.dag(dag) is None:
                time.sleep(0.5)
            self.api.pause(dag, False)

    def produce(self) -> None:
        """Append the records of one epoch of each pipeline."""
        for topic in PIPELINES:
            self._produce(topic)
        self._produced += RECORDS

    def _produce(self, topic: str) -> None:
        numbers = range(self._produced, self._produced + RECORDS)
        self.bench.produce(topic, (f'{{"id": {number}, "who": "w{number % 7}"}}'.encode() for number in numbers), 2)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Structured Streaming runs in the block, in a process of its own."""
        self._recipe.make()
        stored = self._recipe.stored(self.stack.home.root / "recipe.json")
        command = [sys.executable, "-m", "bench.recipe", str(stored), "--every", "1 second"]
        with (self.stack.home.root / "recipe.log").open("wb") as log:
            running = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            running.terminate()
            running.wait()

    def stream(self) -> float:
        """Seconds from the last record of a round to its last row in the table."""
        self._produce(STREAMED)
        begun, expected = time.monotonic(), self._produced + RECORDS
        with closing(psycopg2.connect(self.bench.dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            while True:
                cursor.execute(f"SELECT count(*) FROM {STREAMED}")  # noqa: S608 - a name of ours
                if cursor.fetchall() == [(expected,)]:
                    return time.monotonic() - begun
                time.sleep(0.02)

    def submit_nothing(self) -> float:
        """Seconds of a spark-submit as the stack's tasks run it, whose job does nothing."""
        environment = self.stack.airflow.environment()
        command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", "local[2]", "bench/empty_job.py"]
        begun = time.monotonic()
        subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=True)
        return time.monotonic() - begun

    def run(self, dag: str) -> float:
        """Seconds from the trigger to the end of the run; raises `RuntimeError` if it failed."""
        begun = time.monotonic()
        run = self.api.trigger(dag, {})
        while (state := self.api.run_state(dag, run)) not in FINISHED:
            time.sleep(0.05)
        if state != "success":
            raise RuntimeError(f"{run} of {dag} is {state}: {self.api.task_states(dag, run)}")
        return time.monotonic() - begun

    def check(self) -> None:
        """Compare the tables with what was produced; raises `RuntimeError` if a record is missing or doubled."""
        for taken in PIPELINES:
            self.bench.check(taken, self._produced)

    def idle(self, seconds: float) -> dict[str, float]:
        """Share of one core that each part takes while nothing runs."""
        before = seconds_of_stack(self.stack)
        time.sleep(seconds)
        after = seconds_of_stack(self.stack)
        # A worker that ended took its seconds with it.
        return {part: max(0.0, after[part] - spent) / seconds for part, spent in before.items()}


@contextmanager
def airflow() -> Iterator[Airflow]:
    """A stack of its own, which is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="epochline-bench-") as folder:
        dags = Path(folder) / "home" / "bench_dags"
        stack = Stack(Path(folder) / "home", dags_folder=dags)
        stack.up(("postgres", "kafka"))
        dags.mkdir()
        (dags / "bench_small.py").write_text(DAGS)
        stack.up()
        try:
            one = Airflow(stack)
            one.prepare()
            yield one
        finally:
            stack.down(wipe=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of each DAG per round, seconds of the epochs' phases, and shares of a core by part of the idle stack."""

    times: Mapping[str, Sequence[float]]
    phases: Mapping[str, Sequence[float]]
    idle: Mapping[str, float]


def measured(rounds: int, idle: float, *, others: bool = True) -> Measured:
    """Every DAG side by side, with the contestants that need no Airflow if wanted; then the idle stack."""
    times: dict[str, list[float]] = {name: [] for name in (*DAG_OF, *((EMPTY_JOB, STREAMING) if others else ()))}
    with airflow() as one:
        with one.streaming() if others else nullcontext():
            for _ in counted_rounds(times, rounds):
                if others:
                    times[STREAMING].append(one.stream())
                    times[EMPTY_JOB].append(one.submit_nothing())
                one.produce()
                for name, dag in DAG_OF.items():
                    times[name].append(one.run(dag))
                one.check()
        phases = {name: one.bench.phases(DAG_OF[name], PHASES) for name in (WARM, SUBMITTED)}
        time.sleep(5)  # until the last tasks' processes have ended
        return Measured(times=times, phases=phases, idle=one.idle(idle))


def section(rounds: int, idle: int) -> str:
    """Measure, and render the tables."""
    found = measured(rounds, idle)
    first = statistics.median(found.times[EMPTY])
    times = [
        [name, f"{statistics.median(seconds) / first:.1f}", spread(seconds, 1)] for name, seconds in found.times.items()
    ]
    floor = first + statistics.median(found.times[EMPTY_JOB])
    submitted = statistics.median(found.times[SUBMITTED])
    phases = [[name, *(f"{abs(one):.1f}" for one in seconds)] for name, seconds in found.phases.items()]
    cores = {**found.idle, "all": sum(found.idle.values())}
    lines = [
        f"An epoch of {RECORDS:,} records into one table; {rounds} rounds.",
        measured_by("bench.small_epoch"),
        "",
        *table(
            ["from the trigger to the end of the run", "ratio to the empty DAG", "seconds: median, least, most"], times
        ),
        "",
        f"An epoch by spark-submit takes {submitted / floor:.2f} times as long as the empty DAG and the empty job.",
        "Structured Streaming runs beside everything else, until the idle stack is measured.",
        "",
        *table(["seconds, median", *PHASES], phases),
        "",
        *table(
            ["part of the idle stack", "percent of one core"],
            [[part, f"{100 * share:.1f}"] for part, share in cores.items()],
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sizes = {"rounds": (ROUNDS, "rounds that count"), "idle": (IDLE_SECONDS, "seconds of idleness")}
    run("bench.small_epoch", __doc__, section, **sizes)
