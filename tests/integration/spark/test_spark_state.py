"""Keyed state through real Spark jobs: what a transform is given, what an epoch leaves, and what stops a pipeline."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from epochline import KafkaSource, Pipeline, PostgresTable, StateTable, Text
from epochline.config.discovery import find
from epochline.declare.names import split_table
from epochline.spark.in_common import in_common
from tests.integration.spark.conftest import ROOT, Runs, Servers

COUNTING = '''
"""Words of lines, counted on from the state."""

from pyspark.sql import functions as F


def words(lines):
    return lines.select(F.explode(F.split("value", " ")).alias("word"))


def count(lines, state):
    held = state["word_count"]
    new = words(lines).groupBy("word").agg(F.count("*").alias("more"))
    counted = new.join(held, "word", "left").select(
        "word", (F.coalesce("count", F.lit(0)) + F.col("more")).cast("bigint").alias("count")
    )
    seen = held.select(F.concat_ws("=", "word", F.col("count").cast("string")).alias("seen"))
    return {"t_wordcount": counted, "given": seen, "word_count": counted}


def count_on(lines, state):
    made = count(lines, {"word_count": state["u_word_count"]})
    return {"u_wordcount": made["t_wordcount"], "u_given": made["given"], "u_word_count": made["word_count"]}
'''
COLUMNS = {"word": "text", "count": "bigint"}


class Counting(Runs):
    """A pipeline that counts words."""

    def counts(self, table: str = "word_count") -> dict[str, int]:
        schema, _ = split_table(self.pipeline.states[0].table)
        return dict(self.database.query(f"SELECT word, count FROM {schema}.{table}"))

    def both(self) -> dict[str, int]:
        counts = self.counts()
        assert self.counts("t_wordcount") == counts
        return counts

    def given(self) -> list[str]:
        last = "SELECT max(epoch_id) FROM epochline.epochs WHERE state = 'COMMITTED'"
        found = self.database.query(f"SELECT seen FROM given WHERE _epoch = ({last}) ORDER BY 1")
        return [seen for (seen,) in found]


NewCounting = Callable[..., Counting]


@pytest.fixture
def counting(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewCounting:
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(*lines: str, declared: Pipeline | None = None) -> Counting:
        name, source = servers.name, KafkaSource(topics=servers.topic({0: [line.encode() for line in lines]}))
        pipeline = declared or Pipeline(
            name=name, source=source, parse=Text(), transform="counting:count",
            sinks=[
                PostgresTable(table="t_wordcount", mode="upsert", key="word", columns=COLUMNS, aggregated=True),
                PostgresTable(table="given", columns={"seen": "text"}, aggregated=True),
            ],
            state=[StateTable(table="word_count", key="word", columns=COLUMNS, keys="counting:words")],
        )  # fmt: skip
        return Counting(servers, pipeline.model_copy(update={"name": name, "source": source}))

    return make


def test_counts_go_on_from_the_state_and_only_keys_that_occur_are_read_and_written(counting: NewCounting) -> None:
    """C1, C8, E3, S14, X14: absolute counts; a crash before the commit changes nothing; one version per epoch."""
    line = counting("hello world", "hello flink")
    line.epoch()
    assert line.both() == {"hello": 2, "world": 1, "flink": 1}
    assert line.given() == []

    line.produce({0: [b"hello"]})
    who = line.crash()
    assert line.counts() == {"hello": 2, "world": 1, "flink": 1}
    line.committed(line.plan(who), who)

    assert line.both() == {"hello": 3, "world": 1, "flink": 1}
    assert line.given() == ["hello=2"]
    assert dict(line.database.query("SELECT word, _epoch FROM word_count")) == {"hello": 2, "world": 1, "flink": 1}
    assert line.database.query("SELECT epoch_id, keys FROM epochline.state ORDER BY 1") == [(1, 3), (2, 3)]


def test_a_restored_word_count_goes_on_from_the_savepoint(counting: NewCounting) -> None:
    """E3, E7, C12, C13: of the shipped program, state, target and head go back together; what came since is read again, and counted once."""
    declared = find("word_count", ROOT / "dags" / "examples")
    sinks = tuple(one.model_copy(update={"before_images": 10}) for one in declared.sinks)
    line = counting(*["hello world"] * 5, declared=declared.model_copy(update={"sinks": sinks}))
    line.epoch()
    line.operate("savepoint", name="five")
    line.epoch({0: [b"hello moon", b"hello"]})
    assert line.both() == {"hello": 7, "world": 5, "moon": 1}

    line.operate("restore", name="five")

    assert line.both() == {"hello": 5, "world": 5}
    assert line.database.query("SELECT next_offset FROM epochline.heads") == [(5,)]
    line.epoch({0: [b"hello world"]})
    assert line.both() == {"hello": 8, "world": 6, "moon": 1}


def test_a_new_pipeline_counts_on_from_a_savepoint(counting: NewCounting) -> None:
    """E7: do counts go on from the savepoint, or from 0?"""
    line = counting(*["hello world"] * 5)
    line.epoch()
    line.operate("savepoint", name="five")
    tables = {"t_wordcount": "u_wordcount", "given": "u_given", "word_count": "u_word_count"}
    others = {
        kind: tuple(one.model_copy(update={"table": tables[one.table]}) for one in kept)
        for kind, kept in (("sinks", line.pipeline.targets), ("state", line.pipeline.state))
    }
    renamed = {"name": f"{line.name}-2", "transform": "counting:count_on", **others}
    second = Counting(line.servers, line.pipeline.model_copy(update=renamed))

    second.operate("restore", name="five", of=line.name)

    assert second.counts("u_word_count") == {"hello": 5, "world": 5}
    line.produce({0: [b"hello world"]})
    assert second.epoch().epoch_id == 2
    assert second.counts("u_word_count") == second.counts("u_wordcount") == {"hello": 6, "world": 6}
    assert line.counts() == {"hello": 5, "world": 5}


def test_a_pipeline_that_begins_without_a_savepoint_begins_from_nothing(counting: NewCounting) -> None:
    """E7: hello once, though it was there five times before the pipeline was."""
    line = counting(*["hello world"] * 5)
    latest = line.pipeline.source.model_copy(update={"startup": "latest"})
    line.pipeline = line.pipeline.model_copy(update={"source": latest})
    assert line.planned()[0].epoch is None

    line.epoch({0: [b"hello world"]})

    assert line.both() == {"hello": 1, "world": 1}


DRAWN = {"word": "text", "drawn": "bigint", "line": "bigint"}


def test_target_and_state_are_made_of_the_same_rows_whatever_chance_says(servers: Servers) -> None:
    """INV-2: a random number, and a tie, are drawn once for both writes."""
    topic = servers.topic({0: [b"word %d" % (n % 50) for n in range(500)]})
    sink = PostgresTable(table="drawn", mode="upsert", key="word", columns=DRAWN, aggregated=True)
    state = StateTable(table="drawn_state", key="word", columns=DRAWN, keys="drawing:keys")

    Runs(servers, servers.pipeline(topic, parse=Text(), transform="drawing:draw", sinks=sink, state=state)).epoch()

    target = servers.database.query("SELECT word, drawn, line FROM drawn ORDER BY word")
    assert len(target) == 50
    assert servers.database.query("SELECT word, drawn, line FROM drawn_state ORDER BY word") == target


def columns_of(frames: list[Any]) -> list[list[str]]:
    return sorted(frame.columns for frame in frames)


def test_what_frames_share_is_found_once_and_what_they_were_given_is_not(spark: SparkSession) -> None:
    """By Spark's own equality: the numbers of columns do not count."""
    given = spark.range(10).withColumn("k", F.col("id") % 3)
    shared, drawn = given.groupBy("k").agg(F.count("*").alias("n")), given.withColumn("r", F.rand())
    twice = [given.groupBy("k").agg(F.max("id").alias("m")).where(where) for where in ("m > 1", "m > 2")]

    assert columns_of(in_common(spark, [shared.where("n > 1"), shared.select("k")], [given])) == [["k", "n"]]
    assert columns_of(in_common(spark, [drawn, drawn.groupBy("id").count()], [given])) == [["id", "k", "r"]]
    assert columns_of(in_common(spark, twice, [given])) == [["k", "m"]]
    assert in_common(spark, [given.where("k = 1"), given.select("id")], [given]) == []
    assert in_common(spark, [drawn], [given]) == []
