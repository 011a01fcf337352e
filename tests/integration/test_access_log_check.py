"""The comparison against a real database: an exact target is exact, one row more or less is found."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn
from psycopg2.extras import execute_values

from epochline_examples.access_log import check as access_log_check
from epochline_examples.access_log.maker import lines

Cursor = psycopg2.extensions.cursor
INCLUDE = Path(access_log_check.__file__).parents[2]
TABLES = """
CREATE TABLE access_log (
    client text, ts timestamptz, method text, path text, protocol text, status int, bytes bigint,
    referrer text, user_agent text, _topic text, _partition int, _offset bigint, _row int, _epoch bigint
);
CREATE TABLE requests_per_client (client text PRIMARY KEY, requests bigint, bytes bigint);
INSERT INTO epochline.pipeline (pipeline) VALUES ('access_log');
INSERT INTO epochline.declaration (hash, pipeline, body) VALUES ('h', 'access_log', '{}');
INSERT INTO epochline.epoch
    (pipeline, epoch_id, generation, state, dag_id, run_id, host, declaration_hash, lease_until, committed_at,
     records_read, records_passed, records_skipped, records_quarantined)
VALUES ('access_log', 1, 1, 'COMMITTED', 'access_log', 'r', 'h', 'h', now(), now(), 0, 0, 0, 0);
"""


def shown(text: object) -> object:
    """One of the values that a text column may have."""
    if text is access_log_check.ANYTHING:
        return "anything"
    return min(text) if isinstance(text, frozenset) else text


def plant(cursor: Cursor, log: Path) -> tuple[int, int]:
    """Write the rows of a log as the pipeline would; the numbers of rows and of malformed lines."""
    rows, malformed = [], []
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for offset, line in enumerate(access_log_check.read_lines(log)):
        one = access_log_check.parse(line)
        if one is None:
            malformed.append(("access_log", 1, 1, "access_log", "id", 0, offset, line, "not a log line"))
            continue
        rows.append((one.client, one.seconds, one.status, one.size, *map(shown, one.texts), "access_log", offset))
        sums[one.client][0] += 1
        sums[one.client][1] += one.size or 0
    execute_values(
        cursor,
        "INSERT INTO access_log (client, ts, status, bytes, method, path, protocol, referrer, user_agent,"
        " _topic, _offset) VALUES %s",
        rows,
        template="(%s, to_timestamp(%s), %s, %s, %s, %s, %s, %s, %s, %s, %s)",
    )
    execute_values(
        cursor,
        "INSERT INTO epochline.quarantined_record (pipeline, generation, epoch_id, topic, topic_id,"
        ' partition, "offset", value, reason) VALUES %s',
        malformed,
    )
    per_client = [(client, *both) for client, both in sums.items()]
    execute_values(cursor, "INSERT INTO requests_per_client VALUES %s", per_client)
    return len(rows), len(malformed)


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
def cursor(postgres_dsn: str) -> Iterator[Cursor]:
    """In the migrated database, with the tables."""
    with closing(psycopg2.connect(postgres_dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(TABLES)
        yield cursor


def run(dsn: str, log: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "epochline_examples.access_log.check", "--log", str(log), "--dsn", dsn, *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(INCLUDE)},
    )  # fmt: skip


def test_one_row_more_or_less_is_found(cursor: Cursor, dsn: str, log: Path) -> None:
    rows, malformed = plant(cursor, log)

    exact = run(dsn, log)

    assert exact.returncode == 0, exact.stdout + exact.stderr
    assert exact.stdout.splitlines()[-1] == (
        f"EXACT: each of 2000 lines took effect exactly once ({rows} rows, {malformed} quarantined)"
    )

    cursor.execute("INSERT INTO access_log SELECT * FROM access_log WHERE _offset = 7 RETURNING path")
    ((path,),) = cursor.fetchall()
    doubled = run(dsn, log)

    assert doubled.returncode == 1
    assert doubled.stdout.splitlines()[-1] == "NOT EXACT: duplicates 1"
    assert "duplicate:" in doubled.stdout
    assert path in doubled.stdout

    cursor.execute("DELETE FROM access_log WHERE _offset = 7")
    deleted = run(dsn, log)

    assert deleted.returncode == 1
    assert deleted.stdout.splitlines()[-1] == "NOT EXACT: missing 1"
    assert f"missing: {log.read_text().splitlines()[7]}" in deleted.stdout


def test_rows_of_another_topic_can_be_left_out_and_programs_get_json(cursor: Cursor, dsn: str, log: Path) -> None:
    plant(cursor, log)
    cursor.execute(
        "CREATE TEMP TABLE other AS SELECT * FROM access_log; UPDATE other SET _topic = 'other';"
        " INSERT INTO access_log SELECT * FROM other"
    )
    assert run(dsn, log).returncode == 1
    assert run(dsn, log, "--topic", "access_log").returncode == 0

    cursor.execute("UPDATE access_log SET bytes = bytes + 1 WHERE _offset = 3")
    cursor.execute("DELETE FROM epochline.quarantined_record WHERE value LIKE '{%%'")
    cursor.execute("UPDATE requests_per_client SET requests = requests + 1 WHERE client LIKE 'host-%%'")

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
