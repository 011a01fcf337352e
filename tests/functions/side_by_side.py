"""Puts the records of two sources into one table, without state."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name


def rows(records: Mapping[str, DataFrame]) -> DataFrame:
    orders = records["orders"].select(F.lit("order").alias("what"), "customer_id", "_topic")
    customers = records["customers"].select(F.lit("customer").alias("what"), "customer_id", "_topic")
    return orders.union(customers).withColumnRenamed("_topic", "topic")
