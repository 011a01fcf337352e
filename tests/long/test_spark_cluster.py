"""A Spark cluster as `epochline up --spark-cluster` starts it: millions of records in one epoch, in bounded memory."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from epochline import Json, KafkaSource, PostgresTable
from epochline.local.spark import Spark
from tests.crash.line import Line
from tests.crash.spark_job import SERVER, cluster_job, family, log_of
from tests.integration.kafka_topics import produce_orders

RECORDS = int(os.environ.get("EPOCHLINE_CLUSTER_RECORDS", "10000000"))
PARTITIONS = 4
COLUMNS = {"id": "bigint", "customer": "text", "amount": "numeric(12,2)"}
MIB = 2**20
HEAP = 1024 * MIB

MOST_OF_A_JVM = HEAP + 768 * MIB
MOST_OF_A_WORKER = 512 * MIB
MOST_GROWTH = 1.3
KINDS = {
    "driver": "org.apache.spark.sql.connect.service.SparkConnectServer",
    "executor": "CoarseGrainedExecutorBackend",
    "Python worker": "pyspark.daemon",
    "client": "spark/main.py",
}


@contextmanager
def largest(spark: Spark, client: psutil.Process) -> Iterator[dict[str, int]]:
    """The most bytes that a process of each kind held in memory during the block."""
    peaks = dict.fromkeys(KINDS, 0)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(1):
            for one in [client, *family(spark)]:
                try:
                    command, held = " ".join(one.cmdline()), one.memory_info().rss
                except psutil.Error:
                    continue
                for kind, what in KINDS.items():
                    if what in command:
                        peaks[kind] = max(peaks[kind], held)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield peaks
    finally:
        ended.set()
        looking.join()


@pytest.mark.long
def test_an_epoch_of_ten_million_records_on_a_cluster_is_exact_and_takes_no_more_memory_than_one_of_a_tenth(
    spark_cluster: Spark, postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    """G3, INV-1: what driver, executors and Python workers hold does not grow with the epoch."""
    table = PostgresTable(table="millions", columns=COLUMNS)
    line = Line(
        postgres_dsn, kafka_bootstrap, name="millions", partitions=PARTITIONS, parse=Json(columns=COLUMNS),
        source=KafkaSource(topics="millions", records_per_epoch=RECORDS), sinks=[table],
    )  # fmt: skip
    peaks = []
    for number, (first, beyond) in enumerate([(0, RECORDS // 10), (RECORDS // 10, RECORDS + RECORDS // 10)], 1):
        produce_orders(kafka_bootstrap, line.topic, range(first, beyond), PARTITIONS)
        planned, ticket = line.to_begun(f"run-{number}")
        assert sum(one.range.until - one.range.start for one in planned.ranges) == beyond - first
        begun = time.monotonic()
        with (
            cluster_job(spark_cluster, SERVER, line, ticket, tmp_path) as running,
            largest(spark_cluster, running) as held,
        ):
            assert running.wait(3 * 3600) == 0, log_of(tmp_path)
        took = time.monotonic() - begun
        assert line.seal(ticket, f"run-{number}").read == beyond - first
        line.commit(number)
        peaks.append(held)
        shown = ", ".join(f"{kind} {size / MIB:.0f} MiB" for kind, size in held.items())
        print(f"{beyond - first} records staged in {took:.0f} s; {shown}; load {os.getloadavg()[0]:.1f}", flush=True)

    produced = RECORDS + RECORDS // 10
    found = line.query("SELECT count(*), count(DISTINCT id), min(id), max(id), sum(amount) FROM millions")
    amounts = sum(number % 100_000 for number in range(produced))
    assert found == [(produced, produced, 0, produced - 1, amounts + produced * 25 / 100)]
    small, large = peaks
    assert max(large["driver"], large["executor"]) < MOST_OF_A_JVM
    assert large["Python worker"] < min(MOST_OF_A_WORKER, MOST_GROWTH * small["Python worker"])
    assert large["client"] < MOST_GROWTH * small["client"]
