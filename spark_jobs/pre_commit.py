"""What spark-submit runs: stage one attempt of one epoch. Connection details come from a file, never as arguments."""

from __future__ import annotations

import argparse
import logging
import sys

from epochline.errors import EpochlineError
from epochline.spark.credentials import read_credentials
from epochline.spark.failure import one_line
from epochline.spark.orphan import end_with_parent


def main(arguments: list[str] | None = None) -> int:
    """Stage the attempt; 0 only when its end mark is written.

    The last line on stderr of a failure of ours is ``EPOCHLINE-ERROR <class>: <message>``. In client mode
    spark-submit joins this process's stderr to its own stdout: that is where the line is found.
    """
    parser = argparse.ArgumentParser(description="Stage one attempt of an epoch: Kafka to PostgreSQL's staging.")
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--epoch", required=True, type=int)
    parser.add_argument("--attempt", required=True, type=int)
    asked = parser.parse_args(arguments)
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        _run(asked.pipeline, asked.epoch, asked.attempt)
    except EpochlineError as error:
        print(f"EPOCHLINE-ERROR {type(error).__name__}: {one_line(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


def _run(pipeline: str, epoch: int, attempt: int) -> None:
    credentials = read_credentials()
    # Spark is imported and started only for a job that can begin.
    from pyspark.sql import SparkSession

    from epochline.spark.job import run

    spark = (
        SparkSession.builder.appName(f"epochline {pipeline} epoch {epoch} attempt {attempt}")
        .config("spark.redaction.regex", "(?i)secret|password|passwd|token|access[.]?key|jaas|credential")
        .getOrCreate()
    )
    try:
        run(spark, pipeline, epoch, attempt, credentials)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
