"""What Spark was given for the memory of an epoch's job, as Spark itself reports it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

SETTINGS = (
    "spark.driver.memory",
    "spark.executor.memory",
    "spark.executor.pyspark.memory",
    "spark.memory.offHeap.size",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.shuffle.partitions",
)
"""The settings that docs/memory.md explains."""

NOT_SET = "not set"


def reported(spark: SparkSession) -> Mapping[str, str]:
    """The value of each setting, or that nobody has set it: then Spark's default holds."""
    return {name: spark.conf.get(name, NOT_SET) or NOT_SET for name in SETTINGS}
