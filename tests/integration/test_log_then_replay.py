"""A durable log in front of a sink: what its replay repeats without transactions, and with them (P3, X27)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from psycopg2.extensions import parse_dsn

ROOT = Path(__file__).parents[2]
ROWS = [f"row {number}" for number in range(10)]
KILLED = -9


class Program:
    """The program with a log of its own, against one topic and one database."""

    def __init__(self, into: str, log: Path, dsn: str, bootstrap: str, topic: str) -> None:
        self.into, self.log = into, log
        self._dsn, self._bootstrap, self._topic = dsn, bootstrap, topic

    def run(self, kill_after: int | None = None) -> str | int:
        """What it reports, or how it died."""
        parts = parse_dsn(self._dsn)
        killed = () if kill_after is None else ("--kill-after", str(kill_after))
        done = subprocess.run(
            [
                sys.executable, "-m", "epochline_examples.log_then_replay", "--bootstrap-servers", self._bootstrap,
                "--topic", self._topic, "--log", str(self.log), "--into", self.into, *killed,
            ],
            env={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "include"), "PGHOST": parts["host"],
                "PGPORT": parts["port"], "PGUSER": parts["user"], "PGPASSWORD": parts["password"],
                "PGDATABASE": parts["dbname"],
            },
            check=False, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode in (0, KILLED), done.stderr
        return done.returncode or done.stdout.strip()

    def rows(self) -> Counter[str]:
        with closing(psycopg2.connect(self._dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT value FROM example_{self.into}")
            return Counter(value for (value,) in cursor.fetchall())


Make = Callable[[str], Program]


@pytest.fixture
def program(postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path) -> Make:
    with closing(KafkaAdminClient(bootstrap_servers=kafka_bootstrap)) as admin:
        admin.create_topics({topic_name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    send(kafka_bootstrap, topic_name, ROWS)
    return lambda into: Program(into, tmp_path / into, postgres_dsn, kafka_bootstrap, topic_name)


def send(bootstrap: str, topic: str, values: list[str]) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)) as producer:
        for value in values:
            producer.send(topic, value.encode()).get(30)


def test_a_replay_that_is_killed_repeats_rows_without_transactions_and_says_how_many(program: Make) -> None:
    """P3, X27: killed -9 after four rows, then after seven: eleven of the twenty-one rows were there before."""
    append = program("append")

    assert append.run(kill_after=4) == KILLED
    assert append.rows() == Counter(ROWS[:4])
    assert append.run(kill_after=7) == KILLED

    assert append.run() == "append: 10 records, 21 rows, 11 repeated, 0 missing"
    assert append.rows() == Counter(ROWS[:4] + ROWS[:7] + ROWS)


def test_the_same_records_through_a_transaction_are_there_once_however_often_it_is_killed(program: Make) -> None:
    """P3: the same log, the same kills; rows and position are one transaction, as an epoch's are."""
    transaction = program("transaction")

    assert transaction.run(kill_after=4) == KILLED
    assert transaction.rows() == Counter()
    assert transaction.run(kill_after=10) == KILLED

    assert transaction.run() == "transaction: 10 records, 10 rows, 0 repeated, 0 missing"
    assert transaction.rows() == Counter(ROWS)


def test_it_is_neither_the_log_nor_the_reading_that_repeats(
    program: Make, kafka_bootstrap: str, topic_name: str
) -> None:
    """X27: the log is durable; a new read goes on behind the last entry, and half an entry counts for nothing."""
    append = program("append")
    assert append.run() == "append: 10 records, 10 rows, 0 repeated, 0 missing"
    assert append.run() == "append: 10 records, 10 rows, 0 repeated, 0 missing"

    with append.log.open("a") as log:
        log.write('{"values": ["row 1')
    send(kafka_bootstrap, topic_name, ["row 10"])

    assert append.run(kill_after=1) == KILLED
    assert append.run() == "append: 11 records, 12 rows, 1 repeated, 0 missing"
    assert append.rows() == Counter([*ROWS, "row 10", "row 10"])


def test_the_program_says_that_it_is_no_mode() -> None:
    """P3: beside the other examples of what repeats."""
    assert "NOT a mode of the product" in (ROOT / "include" / "epochline_examples" / "log_then_replay.py").read_text()
