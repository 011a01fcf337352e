"""The documents' programs from topic to topic, through real Spark: running counts under faults, windows into a topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochline import KafkaSource, Pipeline
from epochline.coordinator import Published, publish
from epochline.declarations import find
from epochline.ledger.postgres import PostgresLedger
from epochline.outlets import sinks_by
from pipelines.running_counts import FAULT
from tests.integration.kafka_topics import delete_topic, make_topic
from tests.integration.sinks_world import Seen, seen
from tests.integration.spark.conftest import Runs

ROOT = Path(__file__).parents[3]
PARTITIONS = 3


class Publishing(Runs):
    """A pipeline whose topic is on the tests' own broker."""

    def __init__(self, spark: Any, database: Any, pipeline: Pipeline, bootstrap: str) -> None:
        super().__init__(spark, database, pipeline, bootstrap)
        self.ledger = PostgresLedger(database.dsn, outlets=sinks_by(lambda _: {"bootstrap.servers": bootstrap}))

    def publish(self) -> list[Published]:
        return list(publish(self.ledger, self.name))

    def seen(self, isolation: str = "read_committed") -> list[Seen]:
        return seen(self.bootstrap, self.pipeline.topics[0].topic, isolation)


@pytest.fixture
def shipped(spark, database, name, kafka_bootstrap) -> Iterator[Callable[[str], Publishing]]:
    """A program of ``dags/examples`` under its own topics' names, which are made anew with three partitions (E1b)."""
    settings = {"bootstrap.servers": kafka_bootstrap}
    made: list[str] = []

    def make(program: str) -> Publishing:
        declared = find(program, ROOT / "dags")
        for topic in (*declared.source.topics, *(sink.topic for sink in declared.topics)):
            delete_topic(settings, topic)
            made.append(make_topic(settings, topic, PARTITIONS))
        return Publishing(spark, database, declared.model_copy(update={"name": name}), kafka_bootstrap)

    yield make
    for topic in made:
        delete_topic(settings, topic)


def counts(records: list[Seen]) -> dict[str, list[int]]:
    """By word, its running counts in the order in which a consumer of its partition sees them."""
    found: dict[str, list[int]] = {}
    for one in records:
        word, _, count = (one.value or "").partition(":::")
        assert one.key == word
        found.setdefault(word, []).append(int(count))
    return found


def test_hello_world_hello_is_counted_word_by_word(shipped: Callable[[str], Publishing], produce) -> None:
    """E1, E1b."""
    line = shipped("running_counts")
    assert line.planned()[0].epoch is None  # latest: what comes from now on
    produce("flink_kafka", {0: [b"hello world hello"]})
    line.epoch()

    line.publish()

    assert sorted(one.value or "" for one in line.seen()) == ["hello:::1", "hello:::2", "world:::1"]


def test_each_word_is_counted_one_to_n_although_every_fifth_word_throws(
    shipped: Callable[[str], Publishing], produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1, C8, X23: attempts that throw leave nothing behind; a publisher that fails between epochs repeats nothing."""
    line = shipped("running_counts")
    line.planned()
    lines = [{0: [b"hello world"], 1: [b"hello"]}, {2: [b"flink hello world"]}, {0: [b"hello", b"hello world"]}]
    attempts = 0
    for records in lines:
        produce("flink_kafka", records)
        planned, who = line.planned()
        for _ in range(12):
            attempts += 1
            monkeypatch.setenv(FAULT, f"0.2:{attempts}")
            try:
                line.committed(planned, who)
            except Exception as error:  # noqa: BLE001 - Spark's own, of many kinds
                assert "出bug了..." in str(error)
            else:
                break
        line.publish()

    assert attempts > len(lines), "no attempt threw: choose other seeds"
    assert counts(line.seen()) == {"hello": [1, 2, 3, 4, 5], "world": [1, 2, 3], "flink": [1]}
    kept = dict(line.database.query("SELECT word, count FROM running_counts"))
    assert kept == {"hello": 5, "world": 3, "flink": 1}
