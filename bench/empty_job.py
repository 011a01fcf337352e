"""Main program of a Spark job that does nothing: what `bench.small_epoch` submits as the floor of a submitted epoch."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    spark = SparkSession.builder.appName("nothing").getOrCreate()
    spark.range(1).mapInArrow(_same, "id bigint").collect()
    spark.stop()
