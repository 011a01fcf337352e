"""A declaration's DAG: ``plan_epoch >> pre_commit >> commit_epoch [>> publish]``, ``abort_epoch`` as teardown."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, AssetOrTimeSchedule, CronDataIntervalTimetable, DeltaDataIntervalTimetable
from jinja2 import StrictUndefined, Template

from epochline.airflow.operators import AbortEpochOperator, CommitEpochOperator, PlanEpochOperator, PublishOperator
from epochline.airflow.pre_commit import PreCommitOperator, RetryByLedger
from epochline.airflow.settings import COMMIT_PATIENCE, PLAN_PATIENCE, PUBLISH_PATIENCE, commit_patience, params
from epochline.config.resolve import file_settings, resolve_settings
from epochline.declare.pipeline import WITHOUT_INTERVALS, Pipeline
from epochline.declare.table import PostgresTable

_DOC = Template(Path(__file__).with_name("dag.md.jinja").read_text(), trim_blocks=True, undefined=StrictUndefined)
_FEW_RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=10)}


def build_dag(pipeline: Pipeline) -> DAG:
    """The DAG of a pipeline, with the pipeline's name as its id; `ConfigurationError` for a wrong settings file."""
    settings = resolve_settings(pipeline, file=file_settings())
    tolerable = settings.tolerable_failures
    with DAG(
        dag_id=pipeline.name,
        schedule=_schedule(pipeline, settings.interval),
        # A schedule needs a start date. Without catch-up the date has no other effect.
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # The ledger counts aborted epochs and refuses more; this keeps Airflow from starting runs to be refused.
        # Airflow pauses the DAG at this number; 0 means never. With a sink that follows the commit it must be never:
        # a run is red while the sink is down, and later runs must still get their epochs.
        max_consecutive_failed_dag_runs=0 if tolerable is None or pipeline.post_commit_sinks else tolerable + 1,
        default_args={"retries": settings.restart.retries, "retry_delay": settings.restart.delay},
        tags=list(pipeline.tags),
        doc_md=_DOC.render(
            name=pipeline.name,
            source=pipeline.source.described,
            sinks=", ".join(map(_described, pipeline.sinks)),
            following=", ".join(str(sink) for sink in pipeline.post_commit_sinks),
        ),
        params=params(),
    ) as dag:
        plan = PlanEpochOperator(
            pipeline=pipeline,
            task_id="plan_epoch",
            record_limit="{{ params.record_limit or '' }}",
            note="{{ params.note or '' }}",
            # It may commit what another run has sealed.
            execution_timeout=PLAN_PATIENCE + settings.minimum_pause + commit_patience(pipeline),
        )
        pre_commit = PreCommitOperator(
            pipeline=pipeline,
            task_id="pre_commit",
            execution_timeout=settings.timeout,
            retry_policy=RetryByLedger(pipeline),
        )
        commit = CommitEpochOperator(
            pipeline=pipeline, task_id="commit_epoch", execution_timeout=COMMIT_PATIENCE + commit_patience(pipeline)
        )
        # Retries of its own: the restart strategy may allow none, or retry for ever.
        abort = AbortEpochOperator(
            pipeline=pipeline, task_id="abort_epoch", execution_timeout=timedelta(minutes=5), **_FEW_RETRIES
        )
        for setup in (plan, pre_commit):
            setup.is_setup = True
        if pipeline.post_commit_sinks:
            commit >> PublishOperator(
                pipeline=pipeline,
                task_id="publish",
                # Also after a run that failed or had nothing to read: epochs of earlier runs may be due, and must not
                # wait until a run succeeds. The task itself fails if the run has failed.
                trigger_rule="all_done",
                execution_timeout=max(
                    [PUBLISH_PATIENCE, *(2 * topic.transaction_timeout for topic in pipeline.topics)]
                ),
                # Fewer than the restart strategy may allow: a sink that is down must not delay the next run's epoch.
                **_FEW_RETRIES,
            )
        plan >> pre_commit >> commit >> abort.as_teardown(setups=[plan, pre_commit], on_failure_fail_dagrun=True)
    return dag


def _described(sink: object) -> str:
    return f"{sink.table} ({sink.mode})" if isinstance(sink, PostgresTable) else str(sink)


def _schedule(pipeline: Pipeline, interval: timedelta | str | None) -> Any:
    """The clock, or records that wait, or both."""
    clock = _timetable(interval)
    if pipeline.wake_on_data is None:
        return clock
    from epochline.airflow.waking import records_asset

    records = records_asset(pipeline, pipeline.wake_on_data)
    return [records] if clock is None else AssetOrTimeSchedule(assets=records, timetable=clock)


def _timetable(schedule: timedelta | str | None) -> Any:
    """A timetable whose runs have data intervals. Airflow's default ones are empty: a backfill would read nothing."""
    if isinstance(schedule, timedelta):
        return DeltaDataIntervalTimetable(schedule)
    if schedule is None or schedule in WITHOUT_INTERVALS:
        return schedule
    return CronDataIntervalTimetable(schedule, timezone="UTC")
