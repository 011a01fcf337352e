"""The demo's verdict is no formality: one row too many or too few, and it says so and ends with 1."""

import json
from pathlib import Path

import pytest
from psycopg2.extensions import parse_dsn

from epochline.cli.demo.show import verdict
from epochline.kafka.source import KafkaOffsets
from epochline.local.credentials import JOB
from epochline.local.stack import Stack
from epochline_examples.access_log.maker import lines
from tests.commands import in_processes
from tests.databases import as_connection, query

ROOT = Path(__file__).parents[2]
LINES = 4_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_bytes(b"".join(line + b"\n" for line in lines(LINES, 7)))
    return path


@pytest.fixture
def target(stack: Stack, postgres_dsn: str, kafka_bootstrap: str, topic_name: str, log: Path, tmp_path: Path) -> str:
    """A database into which `epochline run` has brought the log, Spark with a login that can only stage; its DSN."""
    # Another test's ledger wrote this mirror; with a new database it would mean that the ledger went back in time.
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.access_log")
    source = (ROOT / "dags" / "access_log.py").read_text()
    (tmp_path / "access_log.py").write_text(source.replace('topics="access_log"', f'topics="{topic_name}"'))
    writer = as_connection(stack.postgres.dsn(parse_dsn(postgres_dsn)["dbname"], login=JOB))
    epochline = in_processes(
        tmp_path, postgres=postgres_dsn, kafka=kafka_bootstrap, AIRFLOW_CONN_EPOCHLINE_WRITER=writer
    )
    epochline("migrate")
    epochline("feed", str(log), "--topic", topic_name)
    # Two epochs: the verdict has to hold across a boundary.
    (first,) = json.loads(epochline("run", "access_log", "--max-records", "1500", "--master", "local[2]", "--json"))
    assert (first["state"], first["records_read"]) == ("COMMITTED", 1500)
    assert "caught up after 1 epoch" in epochline("run", "access_log", "--until-caught-up", "--master", "local[2]")
    assert "nothing to read" in epochline("run", "access_log")
    return postgres_dsn


def test_the_verdict_finds_every_row_too_many_or_too_few(
    target: str, log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = parse_dsn(target)
    services, passwords = tmp_path / "services", tmp_path / "passwords"
    services.write_text(
        f"[epochline]\nhost={parts['host']}\nport={parts['port']}\ndbname={parts['dbname']}\nuser={parts['user']}\n"
    )
    passwords.write_text(f"*:*:*:{parts['user']}:{parts['password']}\n")
    passwords.chmod(0o600)
    files = {"PGSERVICEFILE": str(services), "PGPASSFILE": str(passwords)}

    def output(code: int) -> str:
        assert verdict([log], "epochline", files) == code
        return capfd.readouterr().out

    assert f"EXACT: each of {LINES} lines took effect exactly once" in output(0)
    query(target, "CREATE TABLE kept AS TABLE access_log; INSERT INTO access_log SELECT * FROM access_log LIMIT 1")
    assert "duplicates                               1" in output(1)
    query(target, "TRUNCATE access_log; INSERT INTO access_log SELECT * FROM kept OFFSET 1")
    assert "missing                                  1" in output(1)
