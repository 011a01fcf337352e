"""Main program of the job whose driver's classes are archived: what every small epoch does, without its servers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name


def main() -> None:
    """Run two writes in one job, and a shuffle of persisted rows as in an epoch with state."""
    spark = SparkSession.builder.appName("epochline class training").getOrCreate()
    try:
        headers = F.expr("to_json(array(array(string(id), base64(binary(string(id))))))")
        rows = spark.range(8).withColumn("headers", headers).mapInArrow(_same, "id bigint, headers string").persist()
        counted = rows.groupBy("id").agg(F.count("*").alias("n"), F.max("headers").alias("headers"))
        joined = counted.join(rows.select("id"), "id", "left").select("id", "headers")
        one, other = (frame.mapInArrow(_same, "id bigint, headers string") for frame in (rows, joined))
        one.union(other).collect()
        rows.unpersist()
    finally:
        spark.stop()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main()
