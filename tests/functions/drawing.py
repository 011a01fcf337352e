"""Draws a number for each new word, and breaks ties by whichever line comes first."""

import random
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name


def keys(lines: DataFrame) -> DataFrame:
    return lines.select(F.col("value").alias("word"))


def draw(lines: DataFrame, state: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    number = F.udf(lambda: random.randrange(1 << 40), "bigint").asNondeterministic()
    first = lines.repartition(3).dropDuplicates(["value"])
    drawn = first.select(F.col("value").alias("word"), number().alias("drawn"), F.col("_offset").alias("line"))
    new = drawn.join(state["drawn_state"].select("word"), "word", "left_anti").select("word", "drawn", "line")
    return {"drawn": new, "drawn_state": new}
