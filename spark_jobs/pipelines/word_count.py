"""Word count: words of lines, each with how often it has occurred since the beginning (E3)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it


def words(lines: DataFrame) -> DataFrame:
    """The words of all lines, one per row: the keys whose state the count is given."""
    split = lines.select(F.explode(F.split("value", " +")).alias("word"))
    return split.where(F.col("word") != "")


def count(lines: DataFrame, state: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Each word that occurs, with its count until now: what the state held, and the words of this epoch."""
    before = state["word_count"].withColumnRenamed("count", "before")
    new = words(lines).groupBy("word").agg(F.count("*").alias("new"))
    total = F.coalesce(F.col("before"), F.lit(0)) + F.col("new")
    counted = new.join(before, "word", "left").select("word", total.alias("count"))
    return {"t_wordcount": counted, "word_count": counted}
