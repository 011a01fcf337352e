"""The programs beside the product: what is lost, what repeats, and what happens exactly once (G1 to G4)."""

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
from psycopg2.extensions import parse_dsn

from epochline import Settings
from epochline.errors import DeclarationError
from epochline_examples.raw_value import TOPIC, produce
from epochline_examples.two_transactions import KILLED

ROOT = Path(__file__).parents[2]
ROWS = [f"row {number}" for number in range(10)]


class Example:
    """One of the programs, run as a process of its own against one topic and one database."""

    def __init__(self, program: str, dsn: str, bootstrap: str, topic: str) -> None:
        self._program, self._dsn, self._bootstrap, self._topic = program, dsn, bootstrap, topic

    def run(self, crash_at: str = "never") -> int:
        parts = parse_dsn(self._dsn)
        done = subprocess.run(
            [
                sys.executable, "-m", f"epochline_examples.{self._program}",
                "--bootstrap-servers", self._bootstrap, "--topic", self._topic, "--crash-at", crash_at,
            ],
            env={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "include"), "PGHOST": parts["host"],
                "PGPORT": parts["port"], "PGUSER": parts["user"], "PGPASSWORD": parts["password"],
                "PGDATABASE": parts["dbname"],
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )  # fmt: skip
        assert done.returncode in (0, KILLED), done.stderr
        return done.returncode

    def query(self, statement: str) -> list[tuple[object, ...]]:
        with closing(psycopg2.connect(self._dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

    def target(self) -> Counter[object]:
        return Counter(value for (value,) in self.query("SELECT value FROM example_row"))

    def offset(self) -> object:
        return self.query("SELECT max(next_offset) FROM example_offset")[0][0]


def send(bootstrap: str, topic: str, values: list[str]) -> None:
    from kafka import KafkaAdminClient, KafkaProducer

    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        if topic not in admin.list_topics():
            admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    with closing(KafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)) as producer:
        for value in values:
            producer.send(topic, value.encode()).get(30)


@pytest.fixture
def example(postgres_dsn: str, kafka_bootstrap: str, topic_name: str) -> Callable[[str], Example]:
    send(kafka_bootstrap, topic_name, ROWS)
    return lambda program: Example(program, postgres_dsn, kafka_bootstrap, topic_name)


def test_at_most_once_loses_what_was_noted_and_not_yet_written(
    example: Callable[[str], Example], kafka_bootstrap: str, topic_name: str
) -> None:
    """G1: ten rows, a crash after the ledger and before the data: none of them ever arrives, the next starts at 10."""
    one = example("at_most_once")

    assert one.run(crash_at="middle") == KILLED
    assert (one.target().total(), one.offset()) == (0, 10)

    send(kafka_bootstrap, topic_name, ["row 10"])
    assert one.run() == 0
    assert one.target() == Counter(["row 10"])


def test_at_least_once_repeats_what_was_written_and_not_yet_noted(example: Callable[[str], Example]) -> None:
    """G2, X11: ten rows, a crash between data and ledger: twenty rows after the retry; repeated, never lost."""
    one = example("at_least_once")

    assert one.run(crash_at="middle") == KILLED
    assert one.run() == 0

    assert one.target() == Counter(ROWS * 2)


@pytest.mark.parametrize(
    ("program", "survives"),
    [
        ("at_most_once", {"begin", "end"}),
        ("at_least_once", {"begin", "end"}),
        ("exactly_once", {"begin", "middle", "end"}),
    ],
)
def test_only_exactly_once_gives_target_equal_to_input_wherever_it_is_killed(
    example: Callable[[str], Example], program: str, survives: set[str]
) -> None:
    """G3, G4: one matrix of crashes over the three; each is killed, then run again."""
    one = example(program)
    exact = set()

    for point in ("begin", "middle", "end"):
        assert one.run(crash_at=point) == KILLED
        assert one.run() == 0
        if one.target() == Counter(ROWS):
            exact.add(point)
        one.query("DELETE FROM example_row RETURNING 1")
        one.query("DELETE FROM example_offset RETURNING 1")

    assert exact == survives


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
    from kafka import KafkaConsumer, TopicPartition

    send(kafka_bootstrap, topic_name, [])
    produce(kafka_bootstrap, pause=0, topic=topic_name)

    with closing(KafkaConsumer(bootstrap_servers=kafka_bootstrap, enable_auto_commit=False)) as consumer:
        partition = TopicPartition(topic_name, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found: list[tuple[object, object]] = []
        while len(found) < 20:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [(record.key, record.value) for record in records]
    expected = [f'{{"value":"{number}"}}' for number in range(1, 21)]
    assert found == [(None, value.encode()) for value in expected]
    assert capsys.readouterr().out.splitlines() == [f"sent: {value}" for value in expected]


def test_producer_and_pipeline_have_one_topic_between_them() -> None:
    """X1: as written in the documents, the consumer never got what the producer sent."""
    from epochline.config.discovery import find

    assert find("raw_value", ROOT / "dags").source.topics == (TOPIC,)
