"""Word count: words of lines, each with the number of its occurrences so far."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name


def words(lines: DataFrame) -> DataFrame:
    """The words of all lines, one per row; they are the keys of the state."""
    split = lines.select(F.explode(F.split("value", " +")).alias("word"))
    return split.where(F.col("word") != "")


def count(lines: DataFrame, state: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Add this epoch's words to the counts of the state; return each word of the epoch with its count."""
    counted = _counted(lines, state["examples.word_count"])
    return {"examples.t_wordcount": counted, "examples.word_count": counted}


def count_in_demo(lines: DataFrame, state: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Do the same for the tables of the pipeline ``savepoint_demo``."""
    counted = _counted(lines, state["examples.savepoint_state"])
    return {"examples.savepoint_counts": counted, "examples.savepoint_state": counted}


def _counted(lines: DataFrame, counts: DataFrame) -> DataFrame:
    before = counts.withColumnRenamed("count", "before")
    new = words(lines).groupBy("word").agg(F.count("*").alias("new"))
    total = F.coalesce(F.col("before"), F.lit(0)) + F.col("new")
    return new.join(before, "word", "left").select("word", total.alias("count"))
