"""A Spark server that stays: its jobs are exact, and what dies on either side of it costs an attempt and no row."""

import os
import stat
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from psycopg2.extensions import parse_dsn

from epochline import PostgresTable, StateTable
from epochline.coordinator import seal
from epochline.local import credentials
from epochline.local.home import Home, Ports
from epochline.local.spark import Spark
from epochline.local.stack import Stack
from epochline.protocol.staging import StagingTicket
from tests.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.crash.spark_job import SERVER, job, log_of
from tests.ports import choose_ports
from tests.processes.client import ROOT
from tests.waiting import arguments_of, wait_for

ONE, TWO, THREE = "run-1", "run-2", "run-3"
ASLEEP = {0: [*(f"early-{i}" for i in range(25)), "sleep 60", "late"], 1: ["another"]}
"""Twenty rows of a part are copied before its parse sleeps for a minute."""

SHIFTING = """
import itertools

from pyspark.sql import functions as F

numbers = itertools.count()


class Shifting:
    def __init__(self, number=0):
        self.number = number

    def __reduce__(self):
        return Shifting, (next(numbers),)


def shift(lines):
    shifting = Shifting()
    return lines.withColumn("value", F.udf(lambda value: f"{value} {shifting.number}")("value"))
"""
VERSIONED = """
import pyarrow as pa
import pyarrow.compute as pc

from {helper} import MARK


def parse(batch):
    values = pc.binary_join_element_wise(batch.column("value").cast(pa.string()), MARK, " ")
    return pa.RecordBatch.from_arrays([values], names=["value"])
"""


@pytest.fixture
def sleeping(new_line: NewLine) -> Line:
    line = new_line(
        parse="scripted:parse", record={"value": "text"}, bad_records="fail",
        spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
    )  # fmt: skip
    line.lease = timedelta(seconds=15)  # the next run waits for its end
    line.produce(ASLEEP)
    return line


def staged(line: Line, who: str, folder: Path, server: str, *path: Path) -> None:
    """One epoch, whose job runs on the server, and may import from these folders."""
    planned, ticket = line.to_begun(who)
    with job(line, ticket, folder, SERVER, server=server, PYTHONPATH=_importable(*path)) as running:
        assert running.wait(240) == 0, log_of(folder)
    assert planned.epoch is not None
    seal(line.ledger, line.source, ticket, line.run_of(who))
    line.commit(planned.epoch.epoch_id)


def _importable(*path: Path) -> str:
    folders = [ROOT / name for name in ("include", "spark_jobs", "tests/functions")]
    return os.pathsep.join(map(str, [*folders, *path]))


def writing(line: Line, ticket: StagingTicket) -> bool:
    asked = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'"
    return bool(line.query(asked, ticket.application_name))


@pytest.mark.fault("F39")
def test_the_query_of_a_killed_client_stops_on_the_server_and_never_counts(
    sleeping: Line, spark_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I6: long before its minute is over, nothing of the attempt writes any more."""
    _, ticket = sleeping.to_begun(ONE)
    with job(sleeping, ticket, tmp_path, SERVER, server=spark_server) as client:
        wait_for("a part is copied", lambda: writing(sleeping, ticket), 120)
        client.kill()
    since = time.monotonic()

    wait_for("the server gives the query up", lambda: not writing(sleeping, ticket), 50)

    assert sleeping.query("SELECT count(*) FROM epochline.manifest") == [(0,)]
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path))
    (tmp_path / "forgive").touch()
    recover(sleeping, since=since)


@pytest.mark.fault("F39")
def test_a_killed_server_ends_its_client_and_the_restarted_one_takes_the_next_attempt(
    sleeping: Line, line: Line, stack: Stack, spark_server: str, tmp_path: Path
) -> None:
    """I1: the client reports a failure instead of waiting for ever; the next epochs find the server again."""
    staged(line, ONE, tmp_path, spark_server)
    _, ticket = sleeping.to_begun(ONE)
    with job(sleeping, ticket, tmp_path, SERVER, server=spark_server) as client:
        wait_for("a part is copied", lambda: writing(sleeping, ticket), 120)
        assert stack.spark.pid is not None
        psutil.Process(stack.spark.pid).kill()
        since = time.monotonic()
        assert client.wait(120) != 0, log_of(tmp_path)
    assert sleeping.query("SELECT count(*) FROM epochline.manifest") == [(0,)]

    stack.up(parts=("spark",))

    line.some(7, "later")
    staged(line, TWO, tmp_path, stack.spark.url)
    recover(line, since=since)


def test_no_password_or_token_is_in_what_others_can_see_of_the_server(
    line: Line, stack: Stack, spark_server: str, tmp_path: Path
) -> None:
    """K21, SEC-4: neither arguments, nor the log, nor a file that others may read."""
    staged(line, ONE, tmp_path, spark_server)

    secrets = [credentials.require(stack.home).spark_token, parse_dsn(line.via)["password"]]
    assert stack.spark.pid is not None
    process = psutil.Process(stack.spark.pid)
    shown = " ".join(arguments_of(one) for one in [process, *process.children(recursive=True)])
    shown += stack.spark.daemon.log.read_text(errors="replace") + log_of(tmp_path)
    assert "SparkConnectServer" in shown
    assert [secret for secret in secrets if secret in shown] == []
    readable = [path for path in stack.spark.folder.rglob("*") if path.is_file() and _others_may_read(path)]
    assert [path for path in readable if any(secret.encode() in path.read_bytes() for secret in secrets)] == []


def _others_may_read(path: Path) -> bool:
    closed = [one for one in (path, *path.parents) if not stat.S_IMODE(one.stat().st_mode) & 0o077]
    return not closed


def test_the_server_listens_on_loopback_only(stack: Stack, spark_server: str) -> None:
    """SEC-8."""
    assert stack.spark.pid is not None
    listening = [one for one in psutil.Process(stack.spark.pid).net_connections() if one.status == psutil.CONN_LISTEN]

    assert stack.spark.port in {one.laddr.port for one in listening}
    assert {one.laddr.ip for one in listening} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_a_client_without_the_token_is_refused(line: Line, spark_server: str, tmp_path: Path) -> None:
    """SEC-8: nothing of the attempt is staged, and the log says why."""
    _, ticket = line.to_begun(ONE)
    with job(line, ticket, tmp_path, SERVER, server=spark_server.replace("token=", "token=not-")) as client:
        assert client.wait(120) != 0

    assert "UNAUTHENTICATED" in log_of(tmp_path) or "Invalid authentication token" in log_of(tmp_path)
    assert line.query("SELECT count(*) FROM epochline.manifest") == [(0,)]


def test_two_pipelines_and_two_versions_of_a_module_do_not_meet_on_a_server(
    new_line: NewLine, spark_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions travel with the job; what an earlier version or another pipeline left in a worker is not used."""
    folders = {}
    for version in ("first", "second"):
        folders[version] = tmp_path / version
        folders[version].mkdir()
        (folders[version] / "helper_of_parse.py").write_text(f"MARK = {version!r}\n")
        (folders[version] / "versioned_parse.py").write_text(VERSIONED.format(helper="helper_of_parse"))
    monkeypatch.syspath_prepend(str(folders["first"]))
    one, other = (new_line(parse="versioned_parse:parse", record={"value": "text"}) for _ in range(2))
    for line in (one, other):
        line.produce({0: ["a"]})
    staged(one, ONE, tmp_path, spark_server, folders["first"])
    staged(other, ONE, tmp_path, spark_server, folders["second"])
    one.produce({0: ["b"]})

    staged(one, TWO, tmp_path, spark_server, folders["second"])

    assert one.query(f"SELECT value FROM {one.name} ORDER BY _offset") == [("a first",), ("b second",)]
    assert other.query(f"SELECT value FROM {other.name}") == [("a second",)]


def test_a_transform_that_is_not_deterministic_is_computed_once_on_a_server(
    new_line: NewLine, spark_server: str, tmp_path: Path
) -> None:
    """INV-2: target and state of an epoch are made of the same random numbers."""
    columns = {"word": "text", "drawn": "bigint", "line": "bigint"}
    line = new_line(
        transform="drawing:draw",
        sinks=[PostgresTable(table="drawn", mode="upsert", key="word", columns=columns, aggregated=True)],
        state=[StateTable(table="drawn_state", key="word", columns=columns, keys="drawing:keys")],
    )
    line.produce({0: [f"word {n % 50}" for n in range(500)]})
    staged(line, ONE, tmp_path, spark_server)
    first = line.query("SELECT word, drawn, line FROM drawn ORDER BY word")
    line.produce({1: [f"word {n % 70}" for n in range(500)]})
    staged(line, TWO, tmp_path, spark_server)

    found = line.query("SELECT word, drawn, line FROM drawn ORDER BY word")
    assert (len(first), len(found)) == (50, 70)
    assert set(first) < set(found)
    assert line.query("SELECT word, drawn, line FROM drawn_state ORDER BY word") == found


def test_a_transform_that_is_another_one_each_time_is_refused_on_a_server(
    new_line: NewLine, spark_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-2: what cannot be compared could be computed twice, each time differently."""
    (tmp_path / "shifting.py").write_text(SHIFTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    line = new_line(
        transform="shifting:shift", sinks=[PostgresTable(table="shifted", columns={"value": "text"})],
    )  # fmt: skip
    line.some(1)
    _, ticket = line.to_begun(ONE)
    with job(line, ticket, tmp_path, SERVER, server=spark_server, PYTHONPATH=_importable(tmp_path)) as client:
        assert client.wait(120) == 1

    assert "DeclarationError: a function of the transform is pickled differently each time" in log_of(tmp_path)


def test_a_setting_that_belongs_to_the_server_is_refused_with_advice(
    new_line: NewLine, spark_server: str, tmp_path: Path
) -> None:
    line = new_line(spark_conf={"spark.executor.memory": "2g"})
    line.some(1)
    _, ticket = line.to_begun(ONE)
    with job(line, ticket, tmp_path, SERVER, server=spark_server) as client:
        assert client.wait(120) == 1

    (error,) = line.query("SELECT error FROM epochline.attempts")
    assert "spark.executor.memory cannot be set on a Spark server that runs already" in error[0]


CLOSING = """
import sys
from epochline.config.discovery import code_version
from epochline.spark.session import shared_session

with shared_session(sys.argv[1], sys.argv[2], code_version()) as spark:
    assert spark.range(3).count() == 3
    spark.stop()
"""


@pytest.mark.parametrize("remembered", ["0", "1000"], ids=["our server", "a server that remembers closed sessions"])
def test_a_session_that_the_server_has_closed_is_opened_again(line: Line, tmp_path: Path, remembered: str) -> None:
    """As after an hour without an epoch."""
    home = Home(tmp_path / "home")
    choose_ports(home)
    credentials.ensure(home)
    tombstones = {"spark.connect.session.manager.closedSessionsTombstonesSize": remembered}
    spark = Spark(home, Ports(home), tombstones)
    spark.start()
    try:
        spark.wait()
        staged(line, ONE, tmp_path, spark.url)
        subprocess.run([sys.executable, "-c", CLOSING, spark.url, line.name], check=True)
        line.some(3, "later")

        staged(line, TWO, tmp_path, spark.url)
    finally:
        spark.stop()

    recover(line)
