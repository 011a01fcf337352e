"""The Spark job of one attempt: read the planned ranges, stage every sink, write the end mark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import psycopg2
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from epochline.brokers import HIDDEN_OPTIONS
from epochline.declared import load_function
from epochline.epoch import EpochKind
from epochline.errors import EpochError, EpochFencedError, EpochlineError, LedgerUnavailableError
from epochline.failpoints import failpoint
from epochline.layout import StagingTicket
from epochline.ledger.parts import end_job, record_error, standing
from epochline.names import QUARANTINE
from epochline.spark.claims import read_claims
from epochline.spark.connection import transaction
from epochline.spark.credentials import JobCredentials
from epochline.spark.failure import one_line, told
from epochline.spark.functions import pickle_by_value, ship_functions
from epochline.spark.one_pass import OnePass
from epochline.spark.parsed import FirstWrite, ParseTask, parse, parsed_rows, refused_and_counted
from epochline.spark.plan import AttemptPlan, read_plan
from epochline.spark.source import read_ranges
from epochline.spark.staging import WriteOrder, stage
from epochline.spark.state import StateReader, read_state
from epochline.spark.transformed import SinkRows, by_table, staged_frame

log = logging.getLogger(__name__)

# What a declaration may set otherwise in its spark_conf.
_DEFAULTS = {
    # A batch is what one worker holds in memory: few records, and few bytes where records are large.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
}

_SETTINGS = {
    # Timestamps travel as UTC, whatever the machine's zone.
    "spark.sql.session.timeZone": "UTC",
    # How a plan is shown, in the UI, the event log and by explain: without what opens Kafka (trap 17).
    "spark.sql.redaction.options.regex": HIDDEN_OPTIONS,
    # Columns are PostgreSQL's, where "a" and "A" are two.
    "spark.sql.caseSensitive": "true",
}

_DRIVER = "epochline:job"


def run(spark: SparkSession, pipeline: str, epoch_id: int, attempt: int, credentials: JobCredentials) -> None:
    """Stage one attempt. Returns only when its end mark is written; a failure is kept with the attempt.

    Running it twice for one attempt is refused or ends in an attempt that the seal refuses; nothing it writes can
    become visible before the seal.

    Raises:
        EpochFencedError: the attempt is not the live one.
        EpochlineError: something else of ours went wrong; the class says whether a retry helps.
    """
    plan = read_plan(credentials.dsn, pipeline, epoch_id, attempt)
    log.info("job.started pipeline=%s epoch=%d attempt=%d", pipeline, epoch_id, attempt)
    try:
        _stage(spark, plan, credentials)
        _end(plan.ticket, credentials.dsn)
    except Exception as error:
        ours = _what_happened(plan.ticket, credentials.dsn, error)
        _keep_error(plan.ticket, credentials.dsn, ours or error)
        if ours is None or ours is error:
            raise
        raise ours from error
    log.info("job.ended pipeline=%s epoch=%d attempt=%d", pipeline, epoch_id, attempt)


def _stage(spark: SparkSession, plan: AttemptPlan, credentials: JobCredentials) -> None:
    if not plan.ranges and plan.kind is not EpochKind.REQUEUE:
        raise EpochError(f"{plan.ticket}: its epoch has no range to read; nothing was written")
    chosen = {name: plan.pipeline.spark_conf.get(name, value) for name, value in _DEFAULTS.items()}
    for name, value in {**chosen, **_SETTINGS}.items():
        spark.conf.set(name, value)
    if plan.kind is EpochKind.REQUEUE:
        records = read_claims(spark, plan.ticket, credentials.dsn)
    else:
        records = read_ranges(spark, plan.ranges, credentials.kafka, plan.parallelism)
    if plan.pipeline.transform is None:
        flow = OnePass(pipeline=plan.pipeline, tables=plan.ticket.tables, functions=ship_functions(plan.pipeline))
        stage(records, WriteOrder(ticket=plan.ticket, flow=flow, dsn=credentials.dsn))
    else:
        _stage_transformed(records, plan, plan.pipeline.transform, credentials.dsn)


def _stage_transformed(records: DataFrame, plan: AttemptPlan, reference: str, dsn: str) -> None:
    pipeline, ticket = plan.pipeline, plan.ticket
    transform: Callable[..., object] = load_function(reference)
    for named in (reference, *(state.keys for state in pipeline.state if state.keys is not None)):
        load_function(named)
        pickle_by_value(named.partition(":")[0])
    task = ParseTask(pipeline=pipeline, ticket=ticket, functions=ship_functions(pipeline), dsn=dsn)
    frame = parse(records, task).persist(StorageLevel.MEMORY_AND_DISK)
    kept = [frame]
    try:
        first = FirstWrite(tables=(ticket.table(QUARANTINE),))
        stage(refused_and_counted(frame), WriteOrder(ticket=ticket, flow=first, dsn=dsn))
        rows = parsed_rows(frame, pipeline)
        states: dict[str, DataFrame] = {}
        for state in pipeline.state:
            read = read_state(rows, StateReader(ticket=ticket, state=state, dsn=dsn))
            states[state.table] = read.persist(StorageLevel.MEMORY_AND_DISK)
            kept.append(states[state.table])
        frames = by_table(pipeline, transform(rows, states) if states else transform(rows), states)
        for sink in pipeline.tables:
            staged = ticket.table(sink.table)
            flow = SinkRows(pipeline=pipeline, sink=sink, tables=(staged,))
            staged_rows = staged_frame(sink, staged, frames[sink.table])
            stage(staged_rows, WriteOrder(ticket=ticket, flow=flow, dsn=dsn))
    finally:
        for one in kept:
            one.unpersist()


def _end(ticket: StagingTicket, dsn: str) -> None:
    """Write the end mark: the last thing a job does, and the only sign that it did everything."""
    with transaction(dsn, ticket.application_name) as session, session.cursor() as cursor:
        ended = end_job(cursor, ticket.attempt_id)
        failpoint("end.commit")
    failpoint("end.committed")
    if not ended:
        raise EpochFencedError(f"{ticket}: was fenced or sealed before its end mark; nothing it wrote counts")


def _what_happened(ticket: StagingTicket, dsn: str, error: Exception) -> EpochlineError | None:
    """Our own error behind a failure. The driver's lost session may mean, as a writer's does, that it was fenced."""
    ours = told(error)
    if isinstance(ours, EpochFencedError):
        return ours
    with suppress(psycopg2.Error, EpochlineError), transaction(dsn, _DRIVER) as session, session.cursor() as cursor:
        found = standing(cursor, ticket.attempt_id)
        if found is None or not found.live:
            return EpochFencedError(f"{ticket}: was fenced or sealed while its job ran; nothing it wrote counts")
    if ours is None and isinstance(error, psycopg2.OperationalError):
        return LedgerUnavailableError(f"{ticket}: {one_line(error)}")
    return ours


def _keep_error(ticket: StagingTicket, dsn: str, error: Exception) -> None:
    # Best effort: the error is raised in any case.
    with suppress(psycopg2.Error, EpochlineError), transaction(dsn, _DRIVER) as session, session.cursor() as cursor:
        record_error(cursor, ticket.attempt_id, f"{type(error).__name__}: {one_line(error)}"[:4000])
