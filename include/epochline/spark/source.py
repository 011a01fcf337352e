"""Reads exactly the planned ranges with Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from epochline.config.kafka import java_settings
from epochline.protocol.offsets import PlannedRange
from epochline.spark.server import cores

RECORD = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
"""Columns of a record, as parsers and flows receive them."""

_SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary,"
    " headers string"
)

# A list of [name, base64 of the value], because Spark asks an Arrow batch for its size after every row: through nested
# headers that took most of its time.
_HEADERS = "to_json(transform(headers, one -> array(one.key, base64(one.value))))"

POLL_TIMEOUT_MS = 120_000
"""How long a task waits for a record before the range counts as lost (``failOnDataLoss``)."""


def read_ranges(
    spark: SparkSession, ranges: Sequence[PlannedRange], kafka: Mapping[str, str], parallelism: int | None = None
) -> DataFrame:
    """A DataFrame of the records in the ranges.

    Only committed records are read (S13). A range that Kafka no longer holds completely raises an error. A partition
    that appeared since the plan is not read.

    Args:
        spark: the session.
        ranges: the epoch's ranges.
        kafka: properties of the connection, including the servers.
        parallelism: number of reading Spark tasks; by default the number of cores or of partitions, the larger one.

    Raises:
        ConfigurationError: a file with a certificate or key cannot be read.
    """
    if not ranges:
        return spark.createDataFrame([], _SCHEMA)
    reader = spark.read.format("kafka")
    reader = reader.options(**{f"kafka.{name}": value for name, value in java_settings(kafka).items()})
    frame = reader.options(**_bounds(ranges, parallelism or cores(spark))).load()
    if parallelism is not None:
        frame = frame.coalesce(parallelism)
    frame = frame.withColumnRenamed("timestampType", "timestamp_type")
    return frame.withColumn("headers", F.expr(_HEADERS)).select(*RECORD)


def _bounds(ranges: Sequence[PlannedRange], tasks: int) -> dict[str, str]:
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    untils: dict[str, dict[str, int]] = {}
    for one in ranges:
        assigned.setdefault(one.tp.topic, []).append(one.tp.partition)
        starts.setdefault(one.tp.topic, {})[str(one.tp.partition)] = one.range.start
        untils.setdefault(one.tp.topic, {})[str(one.tp.partition)] = one.range.until
    bounds = {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(untils),
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
    }
    if len(ranges) < tasks:
        bounds["minPartitions"] = str(tasks)
    return bounds
