"""The comparison of a log with a real database: of one topic, for programs, and without the tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from epochline.config.discovery import find
from epochline_examples.access_log.maker import lines
from tests.databases import query
from tests.integration.in_process import over_records

ROOT = Path(__file__).parents[2]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_bytes(b"".join(line + b"\n" for line in lines(2_000, 7)))
    return path


@pytest.fixture
def dsn(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the checker gets: the password is in the environment alone."""
    parts = parse_dsn(postgres_dsn)
    monkeypatch.setenv("PGPASSWORD", parts.pop("password"))
    return str(make_dsn(**parts))


def run(dsn: str, log: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "epochline_examples.access_log.check", "--log", str(log), "--dsn", dsn, *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "include")},
    )  # fmt: skip


def test_rows_of_another_topic_can_be_left_out_and_programs_get_json(postgres_dsn: str, dsn: str, log: Path) -> None:
    over_records(postgres_dsn, find("access_log", ROOT / "dags"), log.read_bytes().splitlines()).epoch()
    query(
        postgres_dsn,
        "CREATE TEMP TABLE other AS SELECT * FROM access_log; UPDATE other SET _topic = 'other';"
        " INSERT INTO access_log SELECT * FROM other",
    )
    assert run(dsn, log).returncode == 1
    assert run(dsn, log, "--topic", "access_log").returncode == 0

    query(postgres_dsn, "DELETE FROM access_log WHERE _topic = 'access_log' AND _offset = 7")
    query(postgres_dsn, "UPDATE access_log SET bytes = bytes + 1 WHERE _offset = 3")
    query(postgres_dsn, "DELETE FROM epochline.quarantined_record WHERE value LIKE '{%%'")
    query(postgres_dsn, "UPDATE requests_per_client SET requests = requests + 1 WHERE client LIKE 'host-%%'")

    answer = run(dsn, log, "--json", "--topic", "access_log")

    assert answer.returncode == 1
    found = json.loads(answer.stdout)
    assert found["exact"] is False
    assert (found["lines"], found["duplicates"], found["missing"], found["altered"]) == (2000, 0, 1, 1)
    assert found["quarantine_differing"] > 0
    assert found["requests_per_client_differing"] > 0
    assert len(found["samples"]) == 5


def test_a_database_without_the_tables_is_named_in_one_line(dsn: str, log: Path) -> None:
    answer = run(dsn, log)

    assert answer.returncode == 2
    assert answer.stderr == 'access_log_check: relation "access_log" does not exist\n'
