"""The demo's verdict is no formality: one row too many or too few, and it says so and ends with 1."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from epochline.cli.demo.verdict import verdict
from epochline.kafka.source import KafkaOffsets
from epochline.local.credentials import JOB
from epochline.local.home import project_root
from epochline_examples.access_log.maker import lines
from tests.commands import in_processes
from tests.databases import as_connection

LINES = 4_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "access.log"
    path.write_bytes(b"".join(line + b"\n" for line in lines(LINES, 7)))
    return path


@pytest.fixture(scope="module")
def target(stack, new_database, kafka_bootstrap: str, log: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database into which `epochline run` has brought the log, Spark with a login that can only stage; its DSN."""
    dsn, folder = new_database(), tmp_path_factory.mktemp("dags")
    # Another test's ledger wrote this mirror; beside a new database it would mean that the ledger went back in time.
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.access_log")
    topic = f"verdict-{os.getpid()}"
    source = (project_root() / "dags" / "access_log.py").read_text()
    (folder / "access_log.py").write_text(source.replace('topics="access_log"', f'topics="{topic}"'))
    epochline = in_processes(
        folder, postgres=dsn, kafka=kafka_bootstrap,
        AIRFLOW_CONN_EPOCHLINE_WRITER=as_connection(stack.postgres.dsn(parse_dsn(dsn)["dbname"], login=JOB)),
    )  # fmt: skip
    epochline("migrate")
    epochline("feed", str(log), "--topic", topic)
    # Two epochs: the verdict has to hold across a boundary.
    (first,) = json.loads(epochline("run", "access_log", "--max-records", "1500", "--master", "local[2]", "--json"))
    assert (first["state"], first["records_read"]) == ("COMMITTED", 1500)
    assert "caught up after 1 epoch" in epochline("run", "access_log", "--until-caught-up", "--master", "local[2]")
    assert "nothing to read" in epochline("run", "access_log")
    return dsn


@pytest.fixture
def service(target: str, tmp_path: Path) -> dict[str, str]:
    """Client files as the stack has them, for the test's database."""
    parts = parse_dsn(target)
    services, passwords = tmp_path / "services", tmp_path / "passwords"
    services.write_text(
        f"[epochline]\nhost={parts['host']}\nport={parts['port']}\ndbname={parts['dbname']}\nuser={parts['user']}\n"
    )
    passwords.write_text(f"*:*:*:{parts['user']}:{parts['password']}\n")
    passwords.chmod(0o600)
    return {"PGSERVICEFILE": str(services), "PGPASSFILE": str(passwords)}


@pytest.fixture
def changed(target: str) -> Iterator[psycopg2.extensions.cursor]:
    """A cursor whose changes the verdict sees, and that are taken back afterwards."""
    with closing(psycopg2.connect(target)) as session, session.cursor() as cursor:
        session.autocommit = True
        cursor.execute("CREATE TABLE kept AS TABLE access_log")
        yield cursor
        cursor.execute("TRUNCATE access_log")
        cursor.execute("INSERT INTO access_log SELECT * FROM kept")
        cursor.execute("DROP TABLE kept")


def test_what_the_pipeline_brought_is_exact(log, service, capfd):
    assert verdict([log], "epochline", service) == 0

    said = capfd.readouterr().out
    assert f"EXACT: each of {LINES} lines took effect exactly once" in said


def test_a_row_that_is_there_twice_ends_with_one(log, service, changed, capfd):
    changed.execute("INSERT INTO access_log SELECT * FROM access_log LIMIT 1")

    assert verdict([log], "epochline", service) == 1

    assert "duplicates                               1" in capfd.readouterr().out


def test_a_row_that_is_missing_ends_with_one(log, service, changed, capfd):
    changed.execute("DELETE FROM access_log WHERE ctid = (SELECT min(ctid) FROM access_log)")

    assert verdict([log], "epochline", service) == 1

    assert "missing                                  1" in capfd.readouterr().out


def test_the_verdict_reads_no_module_of_epochline():
    code = "import sys, epochline_examples.access_log.check; print([name for name in sys.modules if name.partition('.')[0] == 'epochline'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(project_root() / "include")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == "[]"
