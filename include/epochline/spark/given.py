"""Stages records that are given instead of read: for tests of pipelines."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from epochline.config.connections import JobCredentials
from epochline.errors import ConfigurationError
from epochline.postgres.ledger.attempt_plan import AttemptPlan
from epochline.protocol.staging import StagingTicket
from epochline.spark.job import end, run, writer_of
from epochline.spark.session import session
from epochline.spark.source import RecordSource, TaskReader
from epochline.spark.stage_frames import Made
from epochline.spark.staging import write_manifests

Given = Mapping[str, Sequence[pa.RecordBatch]]
"""The records of an epoch, by input."""


def stage_here(plan: AttemptPlan, dsn: str, given: Given) -> None:
    """Stage the records of a pipeline without a transform in this process, without a JVM. Raises as the job does."""
    # Nothing is shipped: a shipped function would take the place of the module that a test has imported.
    writer = replace(writer_of(plan, dsn), functions=None)
    write_manifests([writer], [writer.write(given[""])])
    end(plan.ticket, dsn, Made())


def stage_in_spark(spark: SparkSession, ticket: StagingTicket, dsn: str, given: Given) -> None:
    """Stage the records by the job of a transform or of windows. Raises as `epochline.spark.job.run`."""

    def records(spark: SparkSession, plan: AttemptPlan, credentials: JobCredentials, name: str) -> RecordSource:
        return RecordSource(spark, TaskReader(1, partial(_all, given[name])))

    run(spark, ticket.pipeline, ticket.epoch_id, ticket.attempt, JobCredentials(dsn=dsn, kafka={}), records)


def _all(batches: Sequence[pa.RecordBatch], task: int) -> Iterator[pa.RecordBatch]:
    return iter(batches)


@contextmanager
def local_session(home: Path, log: Path) -> Iterator[SparkSession]:
    """The session that this process has, which stays; or one with a single core, which ends with the block.

    Raises `ConfigurationError` if there is neither a session nor Java.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise ConfigurationError(
            "a pipeline with a transform or windows needs Spark, and no Java was found: set JAVA_HOME, or let the"
            " fixture epochline_spark return your SparkSession."
        )
    with session("epochline tests", "local[1]", home=home, log=log, conf={}) as spark:
        yield spark
