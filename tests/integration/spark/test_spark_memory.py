"""What limits an epoch's memory, and that Spark was given it."""

import logging
from pathlib import Path

import pytest

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from tests.commands import in_processes
from tests.databases import query
from tests.integration.spark.conftest import Servers

HEAP, WORKER_MIB, RECORDS = "640m", 1024, 50_000

DECLARED = """
from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

COLUMNS = {{"heap": "text", "most": "bigint"}}
dag = epoch_dag(Pipeline(
    name="limited", source=KafkaSource(topics="{topic}"), parse="limits:parse", record=COLUMNS,
    sinks=[PostgresTable(table="limits", columns=COLUMNS)],
    spark_conf={{"spark.driver.memory": "{heap}", "spark.executor.pyspark.memory": "{worker}m"}},
))
"""
LIMITS = """
import resource

import psutil
import pyarrow as pa


def parse(batch):
    java = next(one.cmdline() for one in psutil.Process().parents() if "java" in one.name())
    heap = next(word for word in java if word.startswith("-Xmx"))
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return pa.RecordBatch.from_pydict({"heap": [heap] * len(batch), "most": [most] * len(batch)})
"""


def test_a_declared_limit_is_that_of_the_jvm_and_of_each_worker_and_an_epoch_fits_into_it(
    servers: Servers, tmp_path: Path
) -> None:
    """B2."""
    topic = servers.topic({partition: [b"x" * 100] * (RECORDS // 2) for partition in range(2)})
    (tmp_path / "limited.py").write_text(DECLARED.format(topic=topic, heap=HEAP, worker=WORKER_MIB))
    (tmp_path / "limits.py").write_text(LIMITS)
    dsn = servers.database.dsn
    epochline = in_processes(tmp_path, postgres=dsn, kafka=servers.bootstrap, PYTHONPATH=str(tmp_path))

    epochline("migrate")
    epochline("run", "limited", "--once", "--master", "local[2]")

    found = query(dsn, "SELECT heap, most, count(*) FROM limits GROUP BY 1, 2")
    assert found == [(f"-Xmx{HEAP}", WORKER_MIB * 2**20, RECORDS)]


def test_a_job_logs_the_memory_that_spark_reports(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """B2: also the batch that the pipeline declares, and what nobody has set."""
    topic = servers.topic({0: [b"a"]})
    pipeline = Pipeline(
        name=servers.name, source=KafkaSource(topics=topic), parse=Text(column="line"),
        sinks=PostgresTable(table="public.lines", columns={"line": "text"}),
        spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "77"},
    )  # fmt: skip
    servers.database.attempt(pipeline, {(topic, 0): (0, 1)})

    with caplog.at_level(logging.INFO, "epochline.spark.job"):
        servers.run_job()

    (said,) = [text for text in caplog.messages if text.startswith("job.memory")]
    assert f"pipeline={servers.name} epoch=1 " in said
    assert "spark.sql.execution.arrow.maxRecordsPerBatch='77'" in said
    assert "spark.executor.pyspark.memory='not set'" in said
