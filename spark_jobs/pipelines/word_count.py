"""Word count: words of lines, each with the number of its occurrences so far (E3)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name


def words(lines: DataFrame) -> DataFrame:
    """The words of all lines, one per row; they are the keys of the state."""
    split = lines.select(F.explode(F.split("value", " +")).alias("word"))
    return split.where(F.col("word") != "")


def count(lines: DataFrame, state: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Add this epoch's words to the counts of the state; return each word of the epoch with its count."""
    before = state["word_count"].withColumnRenamed("count", "before")
    new = words(lines).groupBy("word").agg(F.count("*").alias("new"))
    total = F.coalesce(F.col("before"), F.lit(0)) + F.col("new")
    counted = new.join(before, "word", "left").select("word", total.alias("count"))
    return {"t_wordcount": counted, "word_count": counted}
