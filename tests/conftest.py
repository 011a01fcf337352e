"""Real servers for the tests that name one: a stack per session, a database per test."""

import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import psutil
import pytest

from epochline.local import credentials
from epochline.local.home import Home, Ports
from epochline.local.spark import Spark
from epochline.local.stack import Stack
from tests.databases import QUICK, Databases
from tests.ports import choose_ports, free_port
from tests.processes.client import fork_server

pytest_plugins = [
    "tests.browser", "tests.tiers", "tests.turns", "tests.durations", "tests.skips", "tests.crash.reliability"
]  # fmt: skip

# How long an example takes says something of the machine's other work, and nothing of the code.
hypothesis.settings.register_profile("without a clock", deadline=None)
hypothesis.settings.load_profile("without a clock")

_numbers = itertools.count(1)
AIRFLOW_DAGS = Path(__file__).with_name("airflow") / "dags"
FUNCTIONS = Path(__file__).with_name("functions")
COMPILED = Path(__file__).with_name("compiled")


@pytest.fixture(autouse=True)
def _modules_of_this_process() -> Iterator[None]:
    """A writer puts shipped functions in the place of their modules; run here, it would leave them to the next test."""
    before = dict(sys.modules)
    yield
    for name, one in list(sys.modules.items()):
        if one is not before.get(name) and getattr(one, "__spec__", one) is None:
            del sys.modules[name]
            if name in before:
                sys.modules[name] = before[name]


@pytest.fixture(scope="session", autouse=True)
def _no_process_left() -> Iterator[None]:
    """Processes that tests had forked do not outlast the session."""
    yield
    fork_server.end()


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A home of its own with PostgreSQL, gone after the session; `kafka_bootstrap` adds Kafka to it."""
    home = Path(tempfile.mkdtemp(prefix="epochline-tests-"))
    one = Stack(
        home,
        dags_folder=AIRFLOW_DAGS,
        extra_pythonpath=(FUNCTIONS, COMPILED),
        # Nothing here outlives a power cut; processes are killed, and what they wrote stays with the kernel.
        postgres_settings={
            **QUICK,
            "fsync": "off",
            "full_page_writes": "off",
            "max_prepared_transactions": "4",
            "track_commit_timestamp": "on",
        },
        # A task that was killed together with its watcher is noticed by its missing heartbeat; five minutes by default.
        airflow_config={
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer,grace:user,ada:op",
            "EPOCHLINE_COMPILED": str(home / "compiled"),
            # A test may write a token there, and listen there.
            "EPOCHLINE_METRICS_TOKEN_FILE": str(home / "metrics-token"),
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(free_port()),
            "AIRFLOW_CONN_SPARK_NOWHERE": '{"conn_type": "spark", "host": "nowhere"}',
            # Nothing listens there: every attempt to reach it fails at once.
            "AIRFLOW_CONN_POSTGRES_NOWHERE": (
                '{"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "schema": "none", "login": "nobody"}'
            ),
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
        },
    )
    choose_ports(one.home)
    one.up(parts=("postgres",))
    try:
        yield one
    finally:
        throw_away(one)
        shutil.rmtree(home, ignore_errors=True)


def throw_away(stack: Stack) -> None:
    """End the servers at once and delete what they hold: no checkpoint, no orderly end of a broker's many logs."""
    kill_airflow(stack)
    for pid in filter(None, (stack.kafka.pid, stack.spark.pid)):
        _kill_tree(pid)
    if stack.postgres.pid is not None:
        os.kill(stack.postgres.pid, signal.SIGQUIT)
    stack.down(wipe=True)


def kill_airflow(stack: Stack) -> None:
    """End Airflow's processes at once, with the tasks that they run."""
    for pid in filter(None, stack.airflow.pids.values()):
        _kill_tree(pid)


def _kill_tree(pid: int) -> None:
    process = psutil.Process(pid)
    for one in [*process.children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            one.kill()


@pytest.fixture(scope="session")
def kafka_bootstrap(stack: Stack) -> str:
    stack.up(parts=("kafka",))
    return stack.kafka.bootstrap_servers


@pytest.fixture(scope="session")
def second_cluster() -> Iterator[Stack]:
    """A Kafka cluster of its own."""
    home = Path(tempfile.mkdtemp(prefix="epochline-second-"))
    one = Stack(home)
    choose_ports(one.home)
    one.up(parts=("kafka",))
    try:
        yield one
    finally:
        throw_away(one)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def spark_server(stack: Stack) -> str:
    """The URL of a Spark Connect server, with its token; it is started again if a test before ended it."""
    stack.up(parts=("spark",))
    return stack.spark.url


@pytest.fixture(scope="session")
def _spark_cluster() -> Iterator[Spark]:
    home = Home(Path(tempfile.mkdtemp(prefix="epochline-cluster-")))
    choose_ports(home)
    credentials.ensure(home)
    spark = Spark(home, Ports(home), extra_pythonpath=(FUNCTIONS, COMPILED))
    try:
        spark.start(on_cluster=True)
        spark.wait()
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(home.root, ignore_errors=True)


@pytest.fixture
def spark_cluster(_spark_cluster: Spark) -> Spark:
    """A master, two workers and a Spark server whose executors they started; what the test before killed is back."""
    _spark_cluster.start()
    _spark_cluster.wait()
    return _spark_cluster


@pytest.fixture(scope="session")
def new_database(stack: Stack) -> Callable[[], str]:
    """Makes a fresh database with a migrated ledger; gives its libpq URL, password included."""
    return Databases(stack.postgres, "FILE_COPY").new


@pytest.fixture
def postgres_dsn(new_database: Callable[[], str]) -> str:
    """The libpq URL of a fresh database with a migrated ledger."""
    return new_database()


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own."""
    return f"topic-{os.getpid()}-{next(_numbers)}"
