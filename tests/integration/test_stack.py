"""The embedded stack with real servers: durable, private, repaired by `up`, blind to what is not its own."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg2
import pytest

from epochline.kafka.feed import feed
from epochline.local.jars import cache_folder
from epochline.local.postgres import binaries, client_environment
from epochline.local.stack import Stack, State
from tests.databases import query
from tests.integration.kafka_topics import read_topic
from tests.waiting import arguments_of, wait_until

ROOT = Path(__file__).parents[2]
BOTH = ("postgres", "kafka")
SETTINGS = {
    "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "data_checksums": "on",
    "password_encryption": "scram-sha-256", "listen_addresses": "127.0.0.1", "client_connection_check_interval": "2s",
    "TimeZone": "UTC", "max_connections": "200",
}  # fmt: skip
UP = """
import sys; from pathlib import Path; from epochline.local.stack import Stack
Stack(Path(sys.argv[1])).up(sys.argv[2:])
"""
"""Starts parts of the stack in a folder."""


def _up(stack: Stack, parts: Sequence[str] = BOTH) -> None:
    stack.up(parts, report=lambda _line: None)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Short, and open to the account that runs PostgreSQL for root; pytest's own folders are neither.
    path = Path(tempfile.mkdtemp(prefix="ep-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Stack]:
    stack = Stack(folder / "one")
    _up(stack)
    yield stack
    stack.down()


@pytest.fixture
def stack(running: Stack) -> Stack:
    """The module's stack, repaired if the test before broke it."""
    _up(running)
    return running


def _family(pids: list[int | None]) -> list[psutil.Process]:
    roots = [psutil.Process(pid) for pid in pids if pid is not None]
    return [process for root in roots for process in (root, *root.children(recursive=True))]


def _listening(processes: list[psutil.Process]) -> set[str]:
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found |= {c.laddr.ip for c in process.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}
    return found


def _secrets(stack: Stack) -> list[str]:
    return [value for key, value in json.loads(stack.home.secrets.read_text()).items() if "cluster" not in key]


def _feed(stack: Stack, topic: str, file: Path) -> dict[int, int]:
    """Send a hundred lines; by partition, how many records they make."""
    file.write_bytes(b"".join(b"line %d\n" % number for number in range(100)))
    return dict(feed(stack.kafka.bootstrap_servers, file, topic, partitions=2).records)


def _records(stack: Stack, topic: str) -> dict[int, int]:
    return Counter(record.partition for record in read_topic(stack.kafka.bootstrap_servers, topic))


def test_postgresql_runs_as_version_18_with_durable_and_closed_settings_and_the_ledger(stack: Stack) -> None:
    assert query(stack.postgres.dsn(), "SHOW server_version")[0][0].startswith("18.")
    assert {name: query(stack.postgres.dsn(), f"SHOW {name}")[0][0] for name in SETTINGS} == SETTINGS
    # A socket would skip the rules of the loopback.
    assert query(stack.postgres.superuser_dsn, "SHOW unix_socket_directories") == [("",)]
    assert query(stack.postgres.dsn(), "SELECT count(*) > 0 FROM pg_tables WHERE schemaname = 'epochline'") == [(True,)]


@pytest.mark.parametrize("database", ["epochline", "airflow", "postgres"])
def test_postgresql_asks_for_a_password(stack: Stack, database: str) -> None:
    with pytest.raises(psycopg2.OperationalError, match="no password supplied"):
        psycopg2.connect(stack.postgres.dsn(database, with_password=False), passfile="/dev/null")
    with pytest.raises(psycopg2.OperationalError, match="authentication failed"):
        psycopg2.connect(stack.postgres.dsn(database, with_password=False), password="guess")

    assert query(stack.postgres.dsn(database), "SELECT current_user, current_database()") == [(database, database)]


def test_one_role_cannot_enter_the_other_roles_database(stack: Stack) -> None:
    dsn = stack.postgres.dsn("epochline").removesuffix("/epochline") + "/airflow"

    with pytest.raises(psycopg2.OperationalError, match="permission denied"):
        psycopg2.connect(dsn)


def test_psql_logs_in_by_service_name(stack: Stack) -> None:
    command = [str(binaries() / "psql"), "service=epochline", "-Atc", "SELECT current_user"]
    environment = {"PATH": os.environ["PATH"], **client_environment(stack.postgres)}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (answer.stdout, answer.stderr) == ("epochline\n", "")


def test_files_with_passwords_are_readable_by_their_owner_only(stack: Stack) -> None:
    password = json.loads(stack.home.secrets.read_text())["epochline"].encode()
    files = [path for path in stack.home.root.rglob("*") if path.is_file() and "data" not in path.parts]
    holding = [path for path in files if password in path.read_bytes()]

    assert {path.name for path in holding} == {"secrets.json", "pgpass"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
    assert stat.S_IMODE(stack.postgres.data.stat().st_mode) == 0o700


def test_no_password_is_on_a_command_line_or_in_the_status_and_nothing_listens_beyond_loopback(stack: Stack) -> None:
    family = _family([stack.postgres.pid, stack.kafka.pid])
    shown = [*map(arguments_of, family), stack.status().model_dump_json()]
    addresses = _listening(family)

    assert not [secret for secret in _secrets(stack) for text in shown if secret in text]
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert addresses


def test_status_names_addresses_versions_and_health(stack: Stack) -> None:
    status = json.loads(stack.status().model_dump_json())

    assert status["kafka"]["bootstrap_servers"] == stack.kafka.bootstrap_servers
    assert status["postgres"]["dsn"] == stack.postgres.dsn(with_password=False)
    states = {part: status[part]["state"] for part in ("postgres", "kafka", "airflow")}
    assert states == {"postgres": "running", "kafka": "running", "airflow": "stopped"}
    assert (status["kafka"]["version"], status["airflow"]["version"]) == ("4.2.0", "3.3.2")
    assert status["healthy"] is False


def test_up_again_at_once_changes_nothing(stack: Stack) -> None:
    def state() -> list[object]:
        return [stack.postgres.pid, stack.kafka.pid, stack.home.ports.read_text(), stack.home.secrets.read_text()]

    before = state()

    _up(stack)

    assert state() == before


def test_up_says_which_part_runs_and_which_one_it_starts(stack: Stack) -> None:
    """After a kill of the broker alone."""
    said: list[str] = []
    broker = stack.kafka.pid
    assert broker is not None
    os.kill(broker, signal.SIGKILL)
    wait_until(lambda: stack.status().kafka.state is State.CRASHED)

    stack.up(BOTH, said.append)

    lines = [" ".join(line.split()) for line in said]
    assert f"kafka starting on port {stack.kafka.port}" in lines
    assert f"postgres runs on port {stack.postgres.port}" in lines
    assert not [line for line in lines if line.startswith("postgres starting")]
    assert [line.split()[0] for line in lines if "is ready" in line] == ["postgres", "kafka"]
    assert [line for line in lines if line.startswith("mended")] == ["mended: kafka had crashed, and runs again"]


@pytest.mark.parametrize("part", BOTH)
def test_a_killed_part_is_shown_and_repaired_with_its_data(stack: Stack, part: str, tmp_path: Path) -> None:
    query(stack.postgres.dsn(), "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT 7 AS n")
    topic = f"kept-{part}"
    fed = _feed(stack, topic, tmp_path / "lines")
    others = {"postgres": stack.postgres.pid, "kafka": stack.kafka.pid}
    victim = others.pop(part)
    assert victim is not None

    os.kill(victim, signal.SIGKILL)

    wait_until(lambda: stack.status().parts[part].state is State.CRASHED)
    _up(stack)
    assert stack.status().parts[part].state is State.RUNNING
    assert others.items() <= {"postgres": stack.postgres.pid, "kafka": stack.kafka.pid}.items()
    assert query(stack.postgres.dsn(), "SELECT n FROM kept") == [(7,)]
    assert _records(stack, topic) == fed == {0: 50, 1: 50}


def test_data_ports_and_passwords_survive_down_and_up(stack: Stack, tmp_path: Path) -> None:
    query(stack.postgres.dsn(), "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT 8 AS n")
    fed = _feed(stack, "survives", tmp_path / "lines")
    dsn, servers = stack.postgres.dsn(), stack.kafka.bootstrap_servers
    family = _family([stack.postgres.pid, stack.kafka.pid])

    stack.down()

    assert not [process for process in family if process.is_running()]
    assert stack.status().postgres.state is stack.status().kafka.state is State.STOPPED
    _up(stack)
    assert (stack.postgres.dsn(), stack.kafka.bootstrap_servers) == (dsn, servers)
    assert query(dsn, "SELECT n FROM kept") == [(8,)]
    assert _records(stack, "survives") == fed


def test_a_second_stack_runs_next_to_the_first_and_its_wipe_touches_only_itself(stack: Stack, folder: Path) -> None:
    foreign = [
        subprocess.Popen(["sleep", "600"]),
        # By command line it looks like a broker of this stack.
        subprocess.Popen(["sh", "-c", "sleep 600; :", "kafka.Kafka", str(folder / "two")]),
    ]
    second = Stack(folder / "two")
    try:
        _up(second)
        assert second.kafka.bootstrap_servers != stack.kafka.bootstrap_servers
        assert second.postgres.port != stack.postgres.port
        assert second.kafka.health() is None
        with pytest.raises(psycopg2.OperationalError):
            psycopg2.connect(second.postgres.dsn().replace(str(second.postgres.port), str(stack.postgres.port)))
    finally:
        second.down(wipe=True)
        alive = [process.poll() is None for process in foreign]
        for process in foreign:
            process.kill()
            process.wait()

    assert alive == [True, True]
    assert not second.home.root.exists()
    assert stack.status().postgres.state is stack.status().kafka.state is State.RUNNING


def test_two_ups_at_once_start_one_server(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "include")}
    command = [sys.executable, "-c", UP, str(folder / "race"), "postgres"]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    stack = Stack(folder / "race")
    try:
        assert [process.returncode for process in both] == [0, 0]
        assert sum("waiting for another" in output for output in outputs) == 1
        assert stack.status().postgres.state is State.RUNNING
    finally:
        stack.down(wipe=True)


def test_up_after_an_interrupted_first_start_works(folder: Path) -> None:
    stack = Stack(folder / "half")
    # What a power cut in the middle of initdb leaves behind.
    draft = stack.postgres.folder / "data.new"
    stack.home.create()
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18\n")
    try:
        _up(stack, ("postgres",))
        assert stack.postgres.health() is None
    finally:
        stack.down(wipe=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="as an ordinary user, all other tests show it")
def test_the_stack_works_for_an_ordinary_user(folder: Path) -> None:
    home = folder / "nobody"
    home.mkdir()
    shutil.chown(home, "nobody")
    # The one capability only lets it read a Python below a closed folder such as /root.
    command = [
        "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search", sys.executable, "-c", UP, str(home / "stack"), *BOTH,
    ]  # fmt: skip
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT / "include"),
        "PYTHONDONTWRITEBYTECODE": "1", "EPOCHLINE_CACHE": str(cache_folder()),
    }  # fmt: skip
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    stack = Stack(home / "stack")
    try:
        assert (done.returncode, done.stderr) == (0, "")
        assert {psutil.Process(pid).username() for pid in (stack.postgres.pid, stack.kafka.pid) if pid} == {"nobody"}
        assert (stack.postgres.health(), stack.kafka.health()) == (None, None)
    finally:
        stack.down(wipe=True)


@pytest.mark.slow  # another Airflow; tests/airflow looks for its secrets, asks it without a token and kills it, too
def test_airflow_is_healthy_private_and_repaired_after_a_kill(folder: Path) -> None:
    stack = Stack(folder / "airflow", dags_folder=folder / "dags")
    (folder / "dags").mkdir()
    try:
        _up(stack, ("airflow",))
        processes = _family(list(stack.airflow.pids.values()))

        assert stack.status().airflow.state is State.RUNNING
        assert _listening(processes) == {"127.0.0.1"}
        scheduler, server = stack.airflow.pids["scheduler"], stack.airflow.pids["api-server"]
        assert scheduler is not None
        workers = psutil.Process(scheduler).children(recursive=True)
        os.kill(scheduler, signal.SIGKILL)

        wait_until(lambda: stack.status().airflow.state is State.CRASHED)
        assert "scheduler" in stack.status().airflow.detail
        _up(stack, ("airflow",))
        assert stack.status().airflow.state is State.RUNNING
        assert stack.airflow.pids["api-server"] == server
        assert stack.airflow.pids["scheduler"] != scheduler
        assert not [worker for worker in workers if worker.is_running()]
    finally:
        stack.down()
    wait_until(lambda: not [process for process in processes if process.is_running()])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", stack.airflow.port)) != 0
