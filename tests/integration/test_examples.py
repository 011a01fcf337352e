"""The example programs: what is lost, what repeats, and what happens exactly once (G1 to G4, P3, X27)."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg2.extensions import parse_dsn

from epochline import Settings
from epochline.config.discovery import find
from epochline.errors import DeclarationError
from epochline_examples import two_transactions
from epochline_examples.raw_value import TOPIC, produce
from tests.databases import query
from tests.integration import kafka_topics
from tests.integration.kafka_topics import make_topic, read_topic

ROOT = Path(__file__).parents[2]
ROWS = [f"row {number}" for number in range(10)]
KILLED = (two_transactions.KILLED, -9)


@dataclass
class Example:
    """One of the programs, run as a process of its own against one topic and one database."""

    program: str
    dsn: str
    bootstrap: str
    topic: str

    def run(self, *options: str) -> str | int:
        """What it reports, or how it died."""
        parts = parse_dsn(self.dsn)
        environment = {f"PG{name.upper()}": parts[name] for name in ("host", "port", "user", "password")}
        environment |= {"PGDATABASE": parts["dbname"], "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "include")}
        command = [sys.executable, "-m", f"epochline_examples.{self.program}", "--topic", self.topic]
        command += ["--bootstrap-servers", self.bootstrap, *options]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode in (0, *KILLED), done.stderr
        return done.returncode or done.stdout.strip()

    def target(self, table: str = "row") -> Counter[object]:
        return Counter(value for (value,) in query(self.dsn, f"SELECT value FROM example_{table}"))


NewExample = Callable[[str], Example]


@pytest.fixture
def example(postgres_dsn: str, kafka_bootstrap: str, topic_name: str) -> NewExample:
    make_topic(kafka_bootstrap, topic_name)
    kafka_topics.produce(kafka_bootstrap, topic_name, map(str.encode, ROWS))
    return lambda program: Example(program, postgres_dsn, kafka_bootstrap, topic_name)


@pytest.mark.parametrize(("program", "copies"), [("at_most_once", 0), ("at_least_once", 2), ("exactly_once", 1)])
def test_only_exactly_once_gives_target_equal_to_input_wherever_it_is_killed(
    example: NewExample, program: str, copies: int
) -> None:
    """G1, G2, G3, G4, X11: each program is killed at each point, then run again.

    A crash between data and ledger loses each of the ten rows, repeats it, or does neither.
    """
    one = example(program)
    for point, expected in (("begin", 1), ("middle", copies), ("end", 1)):
        assert one.run("--crash-at", point) == KILLED[0]
        assert one.run("--crash-at", "never") not in KILLED

        assert one.target() == Counter(ROWS * expected), point
        query(one.dsn, "DELETE FROM example_row; DELETE FROM example_offset")


LogThenReplay = Callable[..., str | int]


@pytest.fixture
def log_then_replay(example: NewExample, tmp_path: Path) -> LogThenReplay:
    """Runs the program with a durable log in front of its sink."""
    one = example("log_then_replay")
    return lambda into, *options: one.run("--log", str(tmp_path / into), "--into", into, *options)


def test_a_replay_that_is_killed_repeats_rows_without_transactions_and_says_how_many(
    example: NewExample, log_then_replay: LogThenReplay
) -> None:
    """P3, X27: killed -9 after four rows, then after seven: eleven of the twenty-one rows were there before."""
    target = example("log_then_replay").target

    assert log_then_replay("append", "--kill-after", "4") == KILLED[1]
    assert target("append") == Counter(ROWS[:4])
    assert log_then_replay("append", "--kill-after", "7") == KILLED[1]

    assert log_then_replay("append") == "append: 10 records, 21 rows, 11 repeated, 0 missing"
    assert target("append") == Counter(ROWS[:4] + ROWS[:7] + ROWS)


def test_the_same_records_through_a_transaction_are_there_once_however_often_it_is_killed(
    example: NewExample, log_then_replay: LogThenReplay
) -> None:
    """P3: the same log, the same kills; rows and position are one transaction, as an epoch's are."""
    target = example("log_then_replay").target

    assert log_then_replay("transaction", "--kill-after", "4") == KILLED[1]
    assert target("transaction") == Counter()
    assert log_then_replay("transaction", "--kill-after", "10") == KILLED[1]

    assert log_then_replay("transaction") == "transaction: 10 records, 10 rows, 0 repeated, 0 missing"
    assert target("transaction") == Counter(ROWS)


def test_it_is_neither_the_log_nor_the_reading_that_repeats(
    example: NewExample, log_then_replay: LogThenReplay, kafka_bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    """X27: the log is durable; a new read goes on behind the last entry, and half an entry counts for nothing."""
    for _ in range(2):
        assert log_then_replay("append") == "append: 10 records, 10 rows, 0 repeated, 0 missing"

    with (tmp_path / "append").open("a") as log:
        log.write('{"values": ["row 1')
    kafka_topics.produce(kafka_bootstrap, topic_name, [b"row 10"])

    assert log_then_replay("append", "--kill-after", "1") == KILLED[1]
    assert log_then_replay("append") == "append: 11 records, 12 rows, 1 repeated, 0 missing"
    assert example("log_then_replay").target("append") == Counter([*ROWS, "row 10", "row 10"])


@pytest.mark.parametrize("program", ["at_most_once", "at_least_once", "log_then_replay"])
def test_a_program_that_loses_or_repeats_says_that_it_is_no_mode(program: str) -> None:
    """P3."""
    assert "NOT a mode of the product" in (ROOT / "include" / "epochline_examples" / f"{program}.py").read_text()


@pytest.mark.parametrize("semantics", ["at_most_once", "at_least_once"])
def test_the_product_refuses_the_other_modes_and_names_the_program_that_shows_why(semantics: str) -> None:
    """K15: the file that the message names exists."""
    with pytest.raises(DeclarationError, match=f"include/epochline_examples/{semantics}.py"):
        Settings(semantics=semantics)

    assert (ROOT / "include" / "epochline_examples" / f"{semantics}.py").exists()


def test_the_producer_sends_twenty_values_in_order_without_a_key(
    kafka_bootstrap: str, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """E2b."""
    make_topic(kafka_bootstrap, topic_name)
    produce(kafka_bootstrap, pause=0, topic=topic_name)

    found = [(record.key, record.value) for record in read_topic(kafka_bootstrap, topic_name)]
    expected = [f'{{"value":"{number}"}}' for number in range(1, 21)]
    assert found == [(None, value.encode()) for value in expected]
    assert capsys.readouterr().out.splitlines() == [f"sent: {value}" for value in expected]


def test_producer_and_pipeline_have_one_topic_between_them() -> None:
    """X1: with a topic each, the consumer never got what the producer sent."""
    assert find("raw_value", ROOT / "dags" / "examples").source.topics == (TOPIC,)
