"""Main program of the job whose driver's classes are archived: what every small epoch does, without its servers."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

_ROWS = "id bigint, name string"


def main() -> None:
    """Run two writes in one job, and a shuffle of persisted rows as in an epoch with state."""
    spark = SparkSession.builder.appName("epochline class training").getOrCreate()
    try:
        rows = spark.range(0, 8, 1, 2).mapInArrow(_read, _ROWS).persist()
        counted = rows.groupBy("id").agg(F.count("*").alias("n"), F.max("name").alias("name"))
        joined = counted.join(rows.select("id"), "id", "left").select("id", "name")
        left, right = (frame.mapInArrow(_same, _ROWS) for frame in (rows, joined))
        left.union(right).collect()
        rows.unpersist()
    finally:
        spark.stop()


def _read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        ids = batch.column("id")
        yield pa.RecordBatch.from_arrays([ids, ids.cast(pa.string())], names=["id", "name"])


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main()
