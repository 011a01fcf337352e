"""The Spark job of one attempt: reads the planned ranges, stages every sink, writes the end mark."""

import logging
from collections.abc import Callable
from contextlib import suppress

import psycopg2
from pyspark.sql import SparkSession

from epochline.config.registry import Registries
from epochline.declare.names import ledger_prefix
from epochline.declare.source import CustomSource
from epochline.errors import (
    ConfigurationError,
    EpochError,
    EpochFencedError,
    EpochlineError,
    JobLostError,
    LedgerUnavailableError,
    rebuilt,
)
from epochline.failpoints import failpoint
from epochline.postgres.ledger.attempt_plan import AttemptPlan, read_plan
from epochline.postgres.ledger.job_session import transaction
from epochline.postgres.ledger.parts import end_job, is_live, record_error
from epochline.protocol.epoch import EpochKind
from epochline.protocol.failures import RecordedError
from epochline.protocol.offsets import belongs_to
from epochline.protocol.staging import StagingTicket
from epochline.spark.credentials import JobCredentials
from epochline.spark.failure import driver_is_gone, epochline_error_from, error_of_user, without_frames
from epochline.spark.functions import NO_REGISTRIES
from epochline.spark.part_rows import one_pass_writer
from epochline.spark.session import MEMORY_SETTINGS, prepare
from epochline.spark.source import RecordSource, claim_reader, read_custom, read_ranges
from epochline.spark.stage_frames import Made, stage_transformed
from epochline.spark.staging import StagingWriter, stage

log = logging.getLogger(__name__)

_DRIVER = "epochline:job"


Records = Callable[[SparkSession, AttemptPlan, JobCredentials, str], RecordSource]
"""Gives the planned records of an input."""


def run(
    spark: SparkSession,
    pipeline: str,
    epoch_id: int,
    attempt: int,
    credentials: JobCredentials,
    records: Records | None = None,
) -> None:
    """Stage one attempt. Returns once its end mark is written; a failure is recorded with the attempt.

    A second run for the same attempt is refused, or the seal refuses the attempt. ``records`` stands for the sources.

    Raises:
        EpochFencedError: the attempt is not live.
        EpochlineError: any other failure that Epochline recognises; the class says whether a retry helps.
    """
    plan = read_plan(credentials.dsn, pipeline, epoch_id, attempt)
    log.info("job.started pipeline=%s epoch=%d attempt=%d", pipeline, epoch_id, attempt)
    try:
        made = _stage(spark, plan, credentials, records or _records)
        end(plan.ticket, credentials.dsn, made)
    except Exception as error:
        ours = _what_happened(plan.ticket, credentials.dsn, error)
        if ours is None and driver_is_gone(spark):
            ours = JobLostError(
                f"{plan.ticket}: the JVM of Spark's driver is gone: it was killed, or ran out of memory. The task's log"
                " may say more"
            )
        _keep_error(plan.ticket, credentials.dsn, ours or error)
        if ours is None or ours is error:
            raise
        raise ours from error
    log.info("job.ended pipeline=%s epoch=%d attempt=%d", pipeline, epoch_id, attempt)


def _stage(spark: SparkSession, plan: AttemptPlan, credentials: JobCredentials, of_input: Records) -> Made:
    if not plan.ranges and plan.kind not in (EpochKind.REQUEUE, EpochKind.IDLE):
        raise EpochError(f"{plan.ticket}: its epoch has no range to read; nothing was written")
    prepare(spark, plan.pipeline.spark_conf, sum(len(planned.range) for planned in plan.ranges))
    memory = " ".join(f"{name}={spark.conf.get(name, 'not set') or 'not set'!r}" for name in MEMORY_SETTINGS)
    log.info("job.memory pipeline=%s epoch=%d %s", plan.pipeline.name, plan.ticket.epoch_id, memory)
    records = {name: of_input(spark, plan, credentials, name) for name in plan.pipeline.inputs}
    registries = Registries(credentials.registries)
    if plan.pipeline.is_transformed:
        return stage_transformed(records, plan, credentials.dsn, registries)
    stage([(records[""], writer_of(plan, credentials.dsn, registries))])
    return Made()


def writer_of(plan: AttemptPlan, dsn: str, registries: Registries = NO_REGISTRIES) -> StagingWriter:
    """The writer of an attempt's records, if its pipeline has no transform. Raises as `one_pass_writer`."""
    spec = plan.pipeline.spec
    search = plan.pipeline.commit_statement_timeout if spec.bad_records == "quarantine" else None
    return one_pass_writer(spec, plan.ticket, dsn, registries, search)


def _records(spark: SparkSession, plan: AttemptPlan, credentials: JobCredentials, name: str) -> RecordSource:
    if plan.kind is EpochKind.REQUEUE:
        return RecordSource(spark, claim_reader(plan.ticket, credentials.dsn, name))
    source, prefix = plan.pipeline.inputs[name].source, ledger_prefix(name)
    ranges = [planned for planned in plan.ranges if belongs_to(name, planned.tp.topic)]
    parallelism = plan.parallelism
    if parallelism is not None and len(ranges) < len(plan.ranges):
        offsets, of_all = (sum(len(planned.range) for planned in part) for part in (ranges, plan.ranges))
        parallelism = max(1, parallelism * offsets // of_all)
    if isinstance(source, CustomSource):
        connection = credentials.source_connections.get(source.connection or "")
        if connection is None and source.connection is not None:
            raise ConfigurationError(
                f"{plan.ticket}: the job was given no connection {source.connection} of source {source.name}; nothing"
                " was written"
            )
        return read_custom(spark, ranges, source.spec, connection, parallelism, prefix)
    kafka = credentials.kafka_of(source.connection)
    if not kafka:
        raise ConfigurationError(
            f"{plan.ticket}: the job was given no connection {source.connection} of Kafka; nothing was written"
        )
    return read_ranges(spark, ranges, kafka, parallelism, prefix)


def end(ticket: StagingTicket, dsn: str, made: Made) -> None:
    """Write the end mark, the last step of a job and the only proof that it completed.

    Raises `EpochFencedError` if the attempt was fenced or sealed.
    """
    with transaction(dsn, ticket.application_name) as session, session.cursor() as cursor:
        ended = end_job(cursor, ticket.attempt_id, made.watermark, made.too_late)
        failpoint("end.commit")
    failpoint("end.committed")
    if not ended:
        raise EpochFencedError(f"{ticket}: was fenced or sealed before its end mark; nothing it wrote counts")


def _what_happened(ticket: StagingTicket, dsn: str, error: Exception) -> EpochlineError | None:
    """Find the Epochline error behind a failure. A lost session may mean that the attempt was fenced."""
    ours = epochline_error_from(error)
    if isinstance(ours, EpochFencedError):
        return ours
    with suppress(psycopg2.Error, EpochlineError), transaction(dsn, _DRIVER) as session, session.cursor() as cursor:
        if not is_live(cursor, ticket.attempt_id):
            return EpochFencedError(f"{ticket}: was fenced or sealed while its job ran; nothing it wrote counts")
    if ours is None and isinstance(error, psycopg2.OperationalError):
        return LedgerUnavailableError(f"{ticket}: {without_frames(error)}")
    return ours


def _keep_error(ticket: StagingTicket, dsn: str, error: Exception) -> None:
    # Best effort, because the caller raises the error in any case.
    with suppress(psycopg2.Error, EpochlineError), transaction(dsn, _DRIVER) as session, session.cursor() as cursor:
        record_error(cursor, ticket.attempt_id, _recorded(error))


def _recorded(error: Exception) -> RecordedError:
    if isinstance(error, EpochlineError):
        return RecordedError.of(error)
    raised = error_of_user(error)
    if raised is not None:
        # A class of the user may have the name of one of ours, and not its meaning.
        name = raised[0] if rebuilt(raised[0], "") is None else type(error).__name__
        return RecordedError(error_class=name, said=raised[1])
    return RecordedError.of(error, without_frames(error))
