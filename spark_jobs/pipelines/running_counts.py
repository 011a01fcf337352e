"""Word count from topic to topic: one running count for each incoming word.

``EPOCHLINE_EXAMPLE_FAULT=0.2:7`` in the environment of the driver raises an exception before each word with a
probability of 20 %. The draw depends on the seed 7, the application's name (which differs between attempts) and the
word's place, so that the rows never depend on it.
"""

import os
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F  # noqa: N812 - its usual name

FAULT = "EPOCHLINE_EXAMPLE_FAULT"

_PLACE = ("_topic", "_partition", "_offset", "_at")
_DRAWN_OF = 1_000_000


def words(lines: DataFrame) -> DataFrame:
    """The words of all lines, one per row, each with its place."""
    split = lines.select(*_PLACE[:-1], F.posexplode(F.split("value", " ")).alias(_PLACE[-1], "word"))
    return split.where(F.col("word") != "")


def count(lines: DataFrame, state: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Return ``word:::count`` for each word in turn, counting on from the state, and each word's last count."""
    came = words(lines).withColumn("word", _or_fault(lines))
    before = state["examples.running_counts"].withColumnRenamed("count", "before")
    in_turn = F.row_number().over(Over.partitionBy("word").orderBy(*_PLACE))
    counted = (
        came.withColumn("turn", in_turn)
        .join(before, "word", "left")
        .select("word", (F.coalesce("before", F.lit(0)) + F.col("turn")).alias("count"))
    )
    sent = counted.withColumn("value", F.concat_ws(":::", "word", F.col("count").cast("string")))
    kept = counted.groupBy("word").agg(F.max("count").alias("count"))
    return {"kafka:flink_kafka2": sent, "examples.running_counts": kept}


def _or_fault(lines: DataFrame) -> Column:
    """The word, or an exception if the environment asks for faults and the draw hits."""
    word = F.col("word")
    probability, _, seed = os.environ.get(FAULT, "0").partition(":")
    if not float(probability):
        return word
    attempt = lines.sparkSession.sparkContext.appName
    drawn = F.pmod(F.xxhash64(F.lit(seed), F.lit(attempt), *_PLACE), F.lit(_DRAWN_OF))
    return F.when(drawn < float(probability) * _DRAWN_OF, F.raise_error(F.lit("出bug了..."))).otherwise(word)
