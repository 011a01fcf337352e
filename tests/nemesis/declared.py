"""The pipeline that the nemesis attacks: counters of Kafka's own producer into every kind of sink, with state.

Driver and workers of Spark import this module too.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from epochline import Files, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Regex, Settings, StateTable, Text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "nemesis"
SOURCE, SHOWN = "nemesis_in", "nemesis_out"
PARTITIONS = 6
KEYS = 1000
FOLDER = "EPOCHLINE_NEMESIS_FILES"
"""The variable of the environment that names the folder of the files."""

NUMBER = {"number": "bigint"}
KEYED = {"bucket": "integer", **NUMBER}
SUMS = {"bucket": "integer", "records": "bigint", "total": "bigint", "newest": "bigint"}


def declared(schedule: timedelta | None = None) -> Pipeline:
    """A table of every record, a table of each key's greatest, a topic, files, and sums by key as state."""
    return Pipeline(
        name=NAME,
        source=KafkaSource(topics=SOURCE, records_per_epoch=1_000_000),
        parse=Regex(pattern=r"(?P<number>[0-9]+)", columns=NUMBER),
        transform="tests.nemesis.declared:fold",
        sinks=[
            PostgresTable(table="numbers", columns=NUMBER),
            PostgresTable(table="greatest", mode="upsert", key="bucket", order_by="number", columns=KEYED),
            KafkaTopic(topic=SHOWN, value=Text(), key="bucket", columns={"bucket": "text"}),
            Files(path=os.environ[FOLDER], columns=NUMBER),
        ],
        state=StateTable(table="sums", key="bucket", columns=SUMS, keys="tests.nemesis.declared:buckets"),
        settings=Settings(tolerable_failures=1_000_000),
        schedule=schedule,
    )  # fmt: skip


def buckets(records: "DataFrame") -> "DataFrame":
    """Each record with its key, which is derived from its number."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return records.withColumn("bucket", (F.col("number") % KEYS).cast("int"))


def fold(records: "DataFrame", state: Mapping[str, "DataFrame"]) -> "dict[str, DataFrame]":
    """Rows of every sink, and the sums with those of the epoch added."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    keyed = buckets(records)
    came = keyed.groupBy("bucket").agg(
        F.count("*").alias("came"), F.sum("number").alias("added"), F.max("number").alias("last")
    )
    sums = came.join(state["sums"], "bucket", "left").select(
        "bucket",
        (F.coalesce("records", F.lit(0)) + F.col("came")).alias("records"),
        (F.coalesce("total", F.lit(0)) + F.col("added")).alias("total"),
        F.greatest("newest", "last").alias("newest"),
    )
    sent = keyed.withColumns({"bucket": F.col("bucket").cast("string"), "value": F.col("number").cast("string")})
    folder = f"files:{os.environ[FOLDER]}"
    return {"numbers": records, "greatest": keyed, f"kafka:{SHOWN}": sent, folder: records, "sums": sums}
