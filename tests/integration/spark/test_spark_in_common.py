"""A transform that is not deterministic gives target and state of one epoch the same rows."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from epochline import KafkaSource, Pipeline, PostgresTable, StateTable, Text
from epochline.spark.in_common import in_common
from tests.integration.spark.conftest import Runs, Servers

COLUMNS = {"word": "text", "drawn": "bigint", "line": "bigint"}


def test_target_and_state_are_made_of_the_same_rows_whatever_chance_says(servers: Servers) -> None:
    """INV-2: a random number, and a tie, are drawn once for both writes."""
    source = KafkaSource(topics=servers.topic({0: [b"word %d" % (n % 50) for n in range(500)]}))
    pipeline = Pipeline(
        name=servers.name, source=source, parse=Text(), transform="drawing:draw",
        sinks=[PostgresTable(table="drawn", mode="upsert", key="word", columns=COLUMNS, aggregated=True)],
        state=[StateTable(table="drawn_state", key="word", columns=COLUMNS, keys="drawing:keys")],
    )  # fmt: skip

    Runs(servers, pipeline).epoch()

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
