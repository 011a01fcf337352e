"""The comparison against a real database: an exact target is exact, one row more or less is found."""

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


@pytest.fixture
def counts(postgres_dsn: str, log: Path) -> str:
    """One committed epoch of the log; its numbers of rows and of malformed lines."""
    one = over_records(postgres_dsn, find("access_log", ROOT / "dags"), log.read_bytes().splitlines())
    counts = one.epoch().epoch.counts
    return f"{counts.passed} rows, {counts.quarantined} quarantined"


def run(dsn: str, log: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "epochline_examples.access_log.check", "--log", str(log), "--dsn", dsn, *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "include")},
    )  # fmt: skip


def test_one_row_more_or_less_is_found(postgres_dsn: str, counts: str, dsn: str, log: Path) -> None:
    exact = run(dsn, log)

    assert exact.returncode == 0, exact.stdout + exact.stderr
    assert exact.stdout.splitlines()[-1] == f"EXACT: each of 2000 lines took effect exactly once ({counts})"

    doubling = "INSERT INTO access_log SELECT * FROM access_log WHERE _offset = 7 RETURNING path"
    ((path,),) = query(postgres_dsn, doubling)
    doubled = run(dsn, log)

    assert doubled.returncode == 1
    assert doubled.stdout.splitlines()[-1] == "NOT EXACT: duplicates 1"
    assert "duplicate:" in doubled.stdout
    assert path in doubled.stdout

    query(postgres_dsn, "DELETE FROM access_log WHERE _offset = 7")
    deleted = run(dsn, log)

    assert deleted.returncode == 1
    assert deleted.stdout.splitlines()[-1] == "NOT EXACT: missing 1"
    assert f"missing: {log.read_text().splitlines()[7]}" in deleted.stdout


@pytest.mark.usefixtures("counts")
def test_rows_of_another_topic_can_be_left_out_and_programs_get_json(postgres_dsn: str, dsn: str, log: Path) -> None:
    query(
        postgres_dsn,
        "CREATE TEMP TABLE other AS SELECT * FROM access_log; UPDATE other SET _topic = 'other';"
        " INSERT INTO access_log SELECT * FROM other",
    )
    assert run(dsn, log).returncode == 1
    assert run(dsn, log, "--topic", "access_log").returncode == 0

    query(postgres_dsn, "UPDATE access_log SET bytes = bytes + 1 WHERE _offset = 3")
    query(postgres_dsn, "DELETE FROM epochline.quarantined_record WHERE value LIKE '{%%'")
    query(postgres_dsn, "UPDATE requests_per_client SET requests = requests + 1 WHERE client LIKE 'host-%%'")

    answer = run(dsn, log, "--json", "--topic", "access_log")

    assert answer.returncode == 1
    found = json.loads(answer.stdout)
    assert found["exact"] is False
    assert (found["lines"], found["duplicates"], found["missing"], found["altered"]) == (2000, 0, 0, 1)
    assert found["quarantine_differing"] > 0
    assert found["requests_per_client_differing"] > 0
    assert len(found["samples"]) == 5


def test_a_database_without_the_tables_is_named_in_one_line(dsn: str, log: Path) -> None:
    answer = run(dsn, log)

    assert answer.returncode == 2
    assert answer.stderr == 'access_log_check: relation "access_log" does not exist\n'
