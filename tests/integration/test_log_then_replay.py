"""A durable log in front of a sink: what its replay repeats without transactions, and with them (P3, X27)."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg2.extensions import parse_dsn

from tests.databases import query
from tests.integration.kafka_topics import make_topic, produce

ROOT = Path(__file__).parents[2]
ROWS = [f"row {number}" for number in range(10)]
KILLED = -9


@dataclass
class Program:
    """The program with a log of its own, against one topic and one database."""

    into: str
    log: Path
    dsn: str
    bootstrap: str
    topic: str

    def run(self, *options: str) -> str | int:
        """What it reports, or how it died."""
        parts = parse_dsn(self.dsn)
        done = subprocess.run(
            [
                sys.executable, "-m", "epochline_examples.log_then_replay", "--bootstrap-servers", self.bootstrap,
                "--topic", self.topic, "--log", str(self.log), "--into", self.into, *options,
            ],
            env={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "include"), "PGHOST": parts["host"],
                "PGPORT": parts["port"], "PGUSER": parts["user"], "PGPASSWORD": parts["password"],
                "PGDATABASE": parts["dbname"],
            },
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode in (0, KILLED), done.stderr
        return done.returncode or done.stdout.strip()

    def rows(self) -> Counter[str]:
        return Counter(value for (value,) in query(self.dsn, f"SELECT value FROM example_{self.into}"))


Make = Callable[[str], Program]


@pytest.fixture
def program(postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path) -> Make:
    make_topic(kafka_bootstrap, topic_name)
    produce(kafka_bootstrap, topic_name, map(str.encode, ROWS))
    return lambda into: Program(into, tmp_path / into, postgres_dsn, kafka_bootstrap, topic_name)


def test_a_replay_that_is_killed_repeats_rows_without_transactions_and_says_how_many(program: Make) -> None:
    """P3, X27: killed -9 after four rows, then after seven: eleven of the twenty-one rows were there before."""
    append = program("append")

    assert append.run("--kill-after", "4") == KILLED
    assert append.rows() == Counter(ROWS[:4])
    assert append.run("--kill-after", "7") == KILLED

    assert append.run() == "append: 10 records, 21 rows, 11 repeated, 0 missing"
    assert append.rows() == Counter(ROWS[:4] + ROWS[:7] + ROWS)


def test_the_same_records_through_a_transaction_are_there_once_however_often_it_is_killed(program: Make) -> None:
    """P3: the same log, the same kills; rows and position are one transaction, as an epoch's are."""
    transaction = program("transaction")

    assert transaction.run("--kill-after", "4") == KILLED
    assert transaction.rows() == Counter()
    assert transaction.run("--kill-after", "10") == KILLED

    assert transaction.run() == "transaction: 10 records, 10 rows, 0 repeated, 0 missing"
    assert transaction.rows() == Counter(ROWS)


def test_it_is_neither_the_log_nor_the_reading_that_repeats(
    program: Make, kafka_bootstrap: str, topic_name: str
) -> None:
    """X27: the log is durable; a new read goes on behind the last entry, and half an entry counts for nothing."""
    append = program("append")
    assert [append.run(), append.run()] == ["append: 10 records, 10 rows, 0 repeated, 0 missing"] * 2

    with append.log.open("a") as log:
        log.write('{"values": ["row 1')
    produce(kafka_bootstrap, topic_name, [b"row 10"])

    assert append.run("--kill-after", "1") == KILLED
    assert append.run() == "append: 11 records, 12 rows, 1 repeated, 0 missing"
    assert append.rows() == Counter([*ROWS, "row 10", "row 10"])


def test_the_program_says_that_it_is_no_mode() -> None:
    """P3: like the other examples of what repeats."""
    assert "NOT a mode of the product" in (ROOT / "include" / "epochline_examples" / "log_then_replay.py").read_text()
