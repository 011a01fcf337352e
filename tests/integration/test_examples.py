"""The example programs: what is lost, what repeats, and what happens exactly once (G1 to G4)."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg2.extensions import parse_dsn

from epochline import Settings
from epochline.config.discovery import find
from epochline.errors import DeclarationError
from epochline_examples.raw_value import TOPIC, produce
from epochline_examples.two_transactions import KILLED
from tests.databases import query
from tests.integration import kafka_topics
from tests.integration.kafka_topics import make_topic, read_topic

ROOT = Path(__file__).parents[2]
ROWS = [f"row {number}" for number in range(10)]


class Example:
    """One of the programs, run as a process of its own against one topic and one database."""

    def __init__(self, program: str, dsn: str, bootstrap: str, topic: str) -> None:
        self._program, self._dsn, self._bootstrap, self._topic = program, dsn, bootstrap, topic

    def run(self, crash_at: str = "never") -> int:
        parts = parse_dsn(self._dsn)
        environment = {f"PG{name.upper()}": parts[name] for name in ("host", "port", "user", "password")}
        environment |= {"PGDATABASE": parts["dbname"], "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "include")}
        command = [sys.executable, "-m", f"epochline_examples.{self._program}", "--topic", self._topic]
        command += ["--bootstrap-servers", self._bootstrap, "--crash-at", crash_at]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode in (0, KILLED), done.stderr
        return done.returncode

    def query(self, statement: str) -> list[tuple[object, ...]]:
        return query(self._dsn, statement)

    def target(self) -> Counter[object]:
        return Counter(value for (value,) in self.query("SELECT value FROM example_row"))


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
    """G2, G3, G4, X11: each program is killed at each point, then run again.

    A crash between data and ledger loses each of the ten rows, repeats it, or does neither.
    """
    one = example(program)
    for point, expected in (("begin", 1), ("middle", copies), ("end", 1)):
        assert one.run(crash_at=point) == KILLED
        assert one.run() == 0

        assert one.target() == Counter(ROWS * expected), point
        one.query("DELETE FROM example_row; DELETE FROM example_offset")


@pytest.mark.parametrize("semantics", ["at_most_once", "at_least_once"])
def test_the_product_refuses_the_other_modes_and_names_the_program_that_shows_why(semantics: str) -> None:
    """K15: the file that the message names exists, and says that it is no mode."""
    with pytest.raises(DeclarationError, match=f"include/epochline_examples/{semantics}.py"):
        Settings(semantics=semantics)

    assert "NOT a mode of the product" in (ROOT / "include" / "epochline_examples" / f"{semantics}.py").read_text()


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
