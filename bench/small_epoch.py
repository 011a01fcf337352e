"""How long a small epoch takes under Airflow, from its trigger to the end of its run, beside an empty DAG.

An epoch's job runs on the stack's Spark server, or in a driver that spark-submit starts for it. All run on one stack,
one after the other in each round. The empty DAG has four tasks that do nothing: it shows what Airflow itself takes. The
empty job is a ``spark-submit`` without Airflow, whose one task passes on one row. Structured Streaming runs all the
time with a trigger of one second (`bench.recipe`); its seconds are those from the last record in Kafka to the last row.
Afterwards nothing runs for a minute, and the processor's time of each part is what the stack takes when it is idle,
with a pipeline that data would wake.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from bench.processor import seconds_of
from bench.recipe import Recipe
from bench.report import measured_by, write_section
from epochline.config.discovery import find
from epochline.local.airflow_api import FINISHED, AirflowApi
from epochline.local.home import project_root
from epochline.local.stack import Stack
from epochline.postgres.ledger.transactions import PostgresLedger

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
        self.api = AirflowApi(stack.airflow.url, timeout=30, token=stack.airflow.token())
        self._produced = 0
        self._recipe = Recipe(
            dsn=stack.postgres.dsn(), kafka={"bootstrap.servers": stack.kafka.bootstrap_servers}, topic=STREAMED,
            table=STREAMED, columns={"id": "bigint", "who": "text"}, schema="id bigint, who string",
            checkpoint=str(stack.home.root / "recipe"),
        )  # fmt: skip

    def prepare(self) -> None:
        """Make topics and tables, and wait until Airflow has read the DAGs."""
        kafka = self.stack.kafka.bootstrap_servers
        with closing(KafkaAdminClient(bootstrap_servers=kafka)) as admin:
            topic = {"num_partitions": 2, "replication_factor": 1}
            admin.create_topics(dict.fromkeys((*PIPELINES, WAKING, STREAMED), topic), wait_for_metadata=True)
        with PostgresLedger(self.stack.postgres.dsn()).transaction() as tx:
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
        producer = Producer({"bootstrap.servers": self.stack.kafka.bootstrap_servers})
        for number in range(self._produced, self._produced + RECORDS):
            producer.produce(topic, f'{{"id": {number}, "who": "w{number % 7}"}}'.encode(), partition=number % 2)
        producer.flush()

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
        with closing(psycopg2.connect(self.stack.postgres.dsn())) as connection, connection.cursor() as cursor:
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
        subprocess.run(command, env=environment, cwd=project_root(), capture_output=True, check=True)
        return time.monotonic() - begun

    def run(self, dag: str) -> float:
        """Seconds from the trigger to the end of the run.

        Raises:
            RuntimeError: the run failed.
        """
        begun = time.monotonic()
        run = self.api.trigger(dag, {})
        while (state := self.api.run_state(dag, run)) not in FINISHED:
            time.sleep(0.05)
        if state != "success":
            raise RuntimeError(f"{run} of {dag} is {state}: {self.api.task_states(dag, run)}")
        return time.monotonic() - begun

    def check(self) -> None:
        """Compare the tables with what was produced.

        Raises:
            RuntimeError: a record is missing or doubled.
        """
        for table in PIPELINES:
            found = self._sql(f"SELECT count(*), count(DISTINCT id) FROM {table}")  # noqa: S608 - a name of ours
            if found != [(self._produced, self._produced)]:
                raise RuntimeError(f"{table} holds {found[0]}, and {self._produced} records were produced")

    def phases(self, pipeline: str) -> list[float]:
        """The median seconds of each phase of a pipeline's epochs, as the ledger has them."""
        medians = ", ".join(f"percentile_cont(0.5) WITHIN GROUP (ORDER BY {name}_seconds)" for name in PHASES)
        where = f"pipeline = '{pipeline}' AND epoch_id > 1"
        return list(self._sql(f"SELECT {medians} FROM epochline.phases WHERE {where}")[0])  # noqa: S608 - names of ours

    def _sql(self, statement: str) -> list[tuple[float, ...]]:
        with closing(psycopg2.connect(self.stack.postgres.dsn())) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

    def idle(self, seconds: float) -> dict[str, float]:
        """Share of one core that each part takes while nothing runs."""
        before = self._spent()
        time.sleep(seconds)
        after = self._spent()
        # A worker that ended took its seconds with it.
        return {part: max(0.0, after[part] - spent) / seconds for part, spent in before.items()}

    def _spent(self) -> dict[str, float]:
        daemons = {
            "postgres": self.stack.postgres.daemon, "kafka": self.stack.kafka.daemon, "spark": self.stack.spark.daemon,
            **self.stack.airflow.daemons,
        }  # fmt: skip
        return {part: _with_children(daemon.pid) for part, daemon in daemons.items()}


def _with_children(pid: int | None) -> float:
    if pid is None:
        return 0.0
    root = psutil.Process(pid)
    return seconds_of([root, *root.children(recursive=True)])


@contextmanager
def airflow(config: Mapping[str, str]) -> Iterator[Airflow]:
    """A stack of its own, which is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="epochline-bench-") as folder:
        dags = Path(folder) / "home" / "bench_dags"
        stack = Stack(Path(folder) / "home", airflow_config=config, dags_folder=dags)
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


def measured(rounds: int, config: Mapping[str, str], idle: float, *, others: bool = True) -> Measured:
    """Every DAG side by side, with the contestants that need no Airflow if wanted; then the idle stack."""
    times: dict[str, list[float]] = {name: [] for name in (*DAG_OF, *((EMPTY_JOB, STREAMING) if others else ()))}
    with airflow(config) as one:
        with one.streaming() if others else nullcontext():
            for number in range(rounds + 1):
                if others:
                    times[STREAMING].append(one.stream())
                    times[EMPTY_JOB].append(one.submit_nothing())
                one.produce()
                for name, dag in DAG_OF.items():
                    times[name].append(one.run(dag))
                one.check()
                said = ", ".join(f"{name} {seconds[-1]:.1f} s" for name, seconds in times.items())
                print(f"round {number} of {rounds}: {said}", flush=True)
        phases = {name: one.phases(DAG_OF[name]) for name in (WARM, SUBMITTED)}
        time.sleep(5)  # until the last tasks' processes have ended
        return Measured(times={name: one[1:] for name, one in times.items()}, phases=phases, idle=one.idle(idle))


def rendered(found: Measured) -> str:
    """The tables."""
    first = statistics.median(found.times[EMPTY])
    lines = [
        f"An epoch of {RECORDS:,} records into one table; {len(found.times[EMPTY])} rounds.",
        measured_by("bench.small_epoch"),
        "",
        "| from the trigger to the end of the run | ratio to the empty DAG | seconds: median, least, most |",
        "|---|---:|---:|",
    ]
    for name, seconds in found.times.items():
        middle = statistics.median(seconds)
        lines.append(f"| {name} | {middle / first:.1f} | {middle:.1f}, {min(seconds):.1f}, {max(seconds):.1f} |")
    floor = first + statistics.median(found.times[EMPTY_JOB])
    submitted = statistics.median(found.times[SUBMITTED])
    lines += [
        "",
        f"An epoch by spark-submit takes {submitted / floor:.2f} times as long as the empty DAG and the empty job.",
        "Structured Streaming runs beside everything else, until the idle stack is measured.",
        "",
        f"| seconds, median | {' | '.join(PHASES)} |",
        "|---|" + "---:|" * len(PHASES),
    ]
    for name, seconds in found.phases.items():
        lines.append(f"| {name} | {' | '.join(f'{abs(one):.1f}' for one in seconds)} |")
    lines += ["", "| part of the idle stack | percent of one core |", "|---|---:|"]
    lines += [f"| {part} | {100 * share:.1f} |" for part, share in found.idle.items()]
    lines.append(f"| all | {100 * sum(found.idle.values()):.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=IDLE_SECONDS, help="seconds of idleness (default: %(default)s)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="a variable for Airflow's processes, such as AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME=1",
    )  # fmt: skip
    parser.add_argument("--report", type=Path, help="the page whose tables are replaced")
    given = parser.parse_args()
    config = dict(one.split("=", 1) for one in given.set)
    write_section(given.report, "bench.small_epoch", rendered(measured(given.rounds, config, given.idle)))


if __name__ == "__main__":
    main()
