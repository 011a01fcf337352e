"""Reads an attempt's plan from the ledger: ranges, declaration and staging tables."""

from dataclasses import dataclass
from datetime import datetime

import psycopg2
from psycopg2.extensions import cursor as Cursor  # noqa: N812

from epochline.config.resolve import recorded_value
from epochline.declare.event_time import PartitionTime, TimeStanding
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochFencedError, EpochNotFoundError
from epochline.failpoints import failpoint
from epochline.postgres.ledger.job_session import transaction
from epochline.postgres.ledger.rows import planned_range
from epochline.postgres.queries.driver_errors import explained
from epochline.postgres.queries.named import statement
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.columns import with_rules
from epochline.protocol.epoch import Attempt, AttemptState, EpochKind
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.refused import Refused, by_partition
from epochline.protocol.staging import StagingTicket
from epochline.protocol.staging_tables import staged_external, staged_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """The plan of one attempt. Every attempt of an epoch has the same ranges (INV-3)."""

    pipeline: Pipeline
    ticket: StagingTicket
    ranges: tuple[PlannedRange, ...]
    kind: EpochKind
    parallelism: int | None = None
    """Number of Spark tasks that read and stage at once, if the settings name one."""
    times: TimeStanding | None = None
    """Event time after the previous epochs, if the pipeline has windows."""


def read_plan(dsn: str, pipeline: str, epoch_id: int, attempt: int) -> AttemptPlan:
    """Read the plan of a live attempt.

    Raises:
        EpochNotFoundError: the ledger has no such attempt.
        EpochFencedError: the attempt is fenced, sealed or has ended, or the epoch has a newer one.
        LedgerUnavailableError: PostgreSQL does not answer; a repeat helps.
        LedgerError: the ledger is missing, or does not allow this version of epochline.
    """
    try:
        with transaction(dsn, "epochline:plan", snapshot=True) as session, session.cursor() as cursor:
            return _read(cursor, pipeline, epoch_id, attempt)
    except psycopg2.Error as error:
        raise explained(error) from error


def _read(cursor: Cursor, pipeline: str, epoch_id: int, number: int) -> AttemptPlan:
    epoch: dict[str, object] = {"pipeline": pipeline, "epoch_id": epoch_id}
    failpoint("job.attempt")
    cursor.execute(statement("plan_of_attempt"), {**epoch, "attempt": number})
    row = cursor.fetchone()
    if row is None:
        raise EpochNotFoundError(f"attempt {number} of epoch {epoch_id} of {pipeline}: not in the ledger")
    not_live, generation, attempt_id, token, kind, body, settings, planned_at, unread = row
    attempt = Attempt(
        attempt_id=attempt_id, pipeline=pipeline, epoch_id=epoch_id, number=number, token=token,
        state=AttemptState.RUNNING,
    )  # fmt: skip
    if not_live is not None:
        raise EpochFencedError(f"{attempt}: {not_live}; nothing was read or written")
    declaration = Pipeline.from_stored(body)
    failpoint("job.targets")
    cursor.execute(statement("planned_targets"), epoch)
    tables = with_rules(cursor, staged_tables(declaration, dict(cursor.fetchall()), epoch_id, number))
    failpoint("job.ranges")
    ranges = tuple(map(planned_range, run(cursor.connection, "planned_ranges", **epoch)))
    refused: Refused = {}
    if declaration.bad_records == "quarantine":
        failpoint("job.refused")
        cursor.execute(statement("refused_records"), {**epoch, "generation": generation})
        refused = by_partition(cursor.fetchall())
    ticket = StagingTicket(
        pipeline=pipeline, epoch_id=epoch_id, attempt=number, attempt_id=attempt_id,
        application_name=attempt.application_name, tables=tables, generation=generation, token=token,
        external=staged_external(declaration), refused=refused,
    )  # fmt: skip
    awake = {(topic, partition) for topic, partition in unread or ()}
    return AttemptPlan(
        pipeline=declaration, ticket=ticket, ranges=ranges, kind=EpochKind(kind),
        parallelism=recorded_value(settings, "parallelism"),
        times=None if declaration.windows is None else _event_times(cursor, declaration, epoch_id, planned_at, awake),
    )  # fmt: skip


def _event_times(
    cursor: Cursor, declared: Pipeline, epoch_id: int, planned_at: datetime, awake: set[tuple[str, int]]
) -> TimeStanding:
    failpoint("job.watermark")
    cursor.execute(statement("watermark_left"), {"pipeline": declared.name, "before": epoch_id})
    left = cursor.fetchone()
    failpoint("job.event_times")
    cursor.execute(statement("event_times"), {"pipeline": declared.name})
    return TimeStanding(
        watermark=None if left is None else left[0],
        partitions={
            (topic, partition): PartitionTime(newest=newest, read_at=read_at, unread=(topic, partition) in awake)
            for topic, _topic_id, partition, newest, read_at in cursor.fetchall()
            if declared.source.reads(topic)
        },
        now=planned_at,
    )
