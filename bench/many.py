"""Many pipelines under one Airflow, each with a run every minute: which of them wait, and what the servers take.

Each pipeline has a file, a topic and a table of its own. Records come all the time. Afterwards every table is compared
with what was produced.
"""

import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg2

from bench.epochs import Bench
from bench.processes import family, held, peaks, seconds_of_stack
from bench.report import measured_table, run, spread
from epochline.airflow.pages.plugin import PREFIX
from epochline.cli.airflow_access import access_to
from epochline.cli.airflow_api import AirflowApi
from epochline.config.discovery import find
from epochline.local.stack import Stack
from tests.airflow.rest import token

PIPELINES, MINUTES, AT_ONCE = 50, 30, 8
RECORDS, _EVERY_SECONDS, _LOOK_SECONDS = 100, 5.0, 3.0
_MOST_SECONDS_TO_CATCH_UP = 600
DECLARED = """
from datetime import timedelta

from epochline import Json, KafkaSource, Pipeline, PostgresTable, epoch_dag

COLUMNS = {{"id": "bigint", "who": "text"}}
pipeline = Pipeline(
    name="{0}", source=KafkaSource(topics="{0}", startup="earliest"), parse=Json(columns=COLUMNS),
    sinks=PostgresTable(table="{0}", columns=COLUMNS), schedule=timedelta(minutes=1),
)
dag = epoch_dag(pipeline)
"""
_COMMITS = """
    SELECT pipeline, extract(epoch FROM committed_at)::float FROM epochline.epochs WHERE state = 'COMMITTED' ORDER BY 2
"""
_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
_PARSED = "SELECT max(last_parse_duration), sum(last_parse_duration) FROM dag"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was seen from the first minute's beginning to the last one's end. Seconds, bytes, and shares of a core."""

    commits: Mapping[str, Sequence[float]]
    """By pipeline, when its epochs were committed, between the beginning and the end of the time measured."""
    most: Mapping[str, int]
    pages: Sequence[float]
    parse: tuple[float, ...]
    """Of the slowest file, and of all files one after the other."""
    cores: Mapping[str, float]


class Many:
    """A stack with many pipelines, and a producer."""

    def __init__(self, stack: Stack, names: Sequence[str]) -> None:
        self.stack, self.names, self.produced = stack, names, 0
        self.bench, self.over = Bench(stack, None), threading.Event()

    def prepare(self, dags: Path) -> None:
        """Make topics and tables, and wait until Airflow has read every file."""
        self.bench.make(*self.names, partitions=2)
        with self.bench.ledger.transaction() as tx:
            for name in self.names:
                tx.targets.create(find(name, dags))
        api = AirflowApi(access_to(self.stack), timeout=30.0)
        for name in self.names:
            while api.dag(name) is None:
                time.sleep(0.5)
            api.pause(name, False)

    @contextmanager
    def producing(self) -> Iterator[None]:
        """Records come for every pipeline during the block."""
        producer = threading.Thread(target=self._produce, daemon=True)
        producer.start()
        try:
            yield
        finally:
            self.over.set()
            producer.join()

    def _produce(self) -> None:
        while not self.over.wait(_EVERY_SECONDS):
            numbers = range(self.produced, self.produced + RECORDS)
            for name in self.names:
                self.bench.produce(name, (f'{{"id": {number}, "who": "w"}}'.encode() for number in numbers), 2)
            self.produced += RECORDS

    def measured(self, seconds: float) -> Measured:
        """Look on for a time in which every pipeline runs."""
        pages: list[float] = []
        began, spent = time.time(), seconds_of_stack(self.stack)
        with peaks(self._look, _LOOK_SECONDS) as most:
            while time.time() < began + seconds:
                pages.append(self._page())
                time.sleep(_LOOK_SECONDS)
        ended = time.time()
        after = seconds_of_stack(self.stack)
        commits: dict[str, list[float]] = {name: [began] for name in self.names}
        for name, at in self.bench.sql(_COMMITS):
            if began <= at <= ended:
                commits[name].append(at)
        return Measured(
            commits={name: [*times, ended] for name, times in commits.items()},
            most=most,
            pages=pages,
            parse=self._ask(_PARSED, "airflow"),
            cores={part: (after[part] - before) / (ended - began) for part, before in spent.items()},
        )

    def wait_and_check(self) -> None:
        """Wait until later runs have committed everything, ten minutes at most, and compare the tables.

        Raises `RuntimeError` if a record is missing or doubled.
        """
        until, left = time.monotonic() + _MOST_SECONDS_TO_CATCH_UP, set(self.names)
        while left and time.monotonic() < until:
            time.sleep(_EVERY_SECONDS)
            left = {name for name in left if self.bench.sql(f"SELECT count(*) FROM {name}") < [(self.produced,)]}  # noqa: S608 - a name of ours
        for name in self.names:
            self.bench.check(name, self.produced)

    @cached_property
    def _token(self) -> str:
        return token(self.stack.airflow)

    def _page(self) -> float:
        url = f"{self.stack.airflow.url}/{PREFIX}/"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._token}"})  # noqa: S310 - ours
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            answer.read()
        return time.perf_counter() - began

    def _ask(self, statement: str, database: str) -> tuple[float, ...]:
        dsn = self.stack.postgres.dsn(database, login="postgres")
        with closing(psycopg2.connect(dsn)) as session, session.cursor() as cursor:
            cursor.execute(statement)
            return tuple(map(float, cursor.fetchall()[0]))

    def _look(self) -> Mapping[str, int]:
        spark, scheduler = self.stack.spark.daemon.pid, self.stack.airflow.daemons["scheduler"].pid
        return {
            "sessions": int(self._ask(_SESSIONS, "epochline")[0]),
            "spark": held(spark or 0),
            "workers": len(family(spark)) - 1,
            "tasks": held(scheduler or 0),
        }


@contextmanager
def many(pipelines: int, at_once: int) -> Iterator[Many]:
    """A stack of its own, which is gone after the block; ``at_once`` is Airflow's ``parallelism``."""
    names = [f"many_{number:02}" for number in range(pipelines)]
    with TemporaryDirectory(prefix="epochline-bench-") as folder:
        dags = Path(folder) / "home" / "bench_dags"
        stack = Stack(
            Path(folder) / "home", dags_folder=dags, airflow_config={"AIRFLOW__CORE__PARALLELISM": str(at_once)}
        )
        stack.up(("postgres", "kafka"))
        dags.mkdir()
        for name in names:
            (dags / f"{name}.py").write_text(DECLARED.format(name))
        stack.up()
        try:
            one = Many(stack, names)
            one.prepare(dags)
            yield one
        finally:
            stack.down(wipe=True)


def section(pipelines: int, minutes: float, at_once: int) -> str:
    """Measure, and render the table."""
    with many(pipelines, at_once) as one:
        with one.producing():
            time.sleep(60)  # the first runs start sessions of Spark
            found = one.measured(60 * minutes)
        print(found, flush=True)  # what was seen, should the check fail
        one.wait_and_check()
    epochs = [len(times) - 2 for times in found.commits.values()]
    waits = [max(later - earlier for earlier, later in pairwise(times)) for times in found.commits.values()]
    pages = [1000 * seconds for seconds in found.pages]
    spark, tasks = (f"{found.most[name] / 2**30:.1f} GiB" for name in ("spark", "tasks"))
    cores = ", ".join(f"{part} {share:.2f}" for part, share in found.cores.items())
    parse = ", ".join(f"{seconds:.1f}" for seconds in found.parse)
    rows: list[list[object]] = [
        ["epochs committed per pipeline: median, least, most", spread(epochs, 0)],
        ["longest time without a commit, seconds, of each pipeline: median, least, most", spread(waits, 0)],
        ["parse of DAG files, seconds: the slowest, all one after the other", parse],
        ["sessions of PostgreSQL, most", found.most["sessions"]],
        ["Spark's server with its Python workers, most", f"{spark}, {found.most['workers']} processes"],
        ["the scheduler with its tasks, most", tasks],
        ["the page of all pipelines, milliseconds: median, least, most", spread(pages, 0)],
        ["cores", cores],
    ]  # fmt: skip
    intro = (
        f"{pipelines} pipelines, each with {RECORDS} records every {_EVERY_SECONDS:.0f} s and a run every minute, for"
        f" {minutes:g} minutes; Airflow's `parallelism` is {at_once}. Every record was in its table once."
        " A process that ended unwaited for is not in the cores."
    )
    return measured_table("bench.many", intro, ["many pipelines", ""], rows)


if __name__ == "__main__":
    run(
        "bench.many", __doc__, section,
        pipelines=(PIPELINES, "number of pipelines"), minutes=(MINUTES, "minutes that are measured"),
        at_once=(AT_ONCE, "tasks that Airflow runs at once"),
    )  # fmt: skip
