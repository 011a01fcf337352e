"""A declaration's DAG: ``plan_epoch >> pre_commit >> commit_epoch [>> publish]``, ``abort_epoch`` as teardown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, AssetOrTimeSchedule, CronDataIntervalTimetable, DeltaDataIntervalTimetable

from epochline.airflow.operators import AbortEpochOperator, CommitEpochOperator, PlanEpochOperator
from epochline.airflow.pre_commit import PreCommitOperator
from epochline.airflow.publishing import PublishOperator
from epochline.airflow.retrying import RetryByLedger
from epochline.airflow.settings import (
    COMMIT_PATIENCE,
    PLAN_PATIENCE,
    PUBLISH_PATIENCE,
    commit_patience,
    params,
    settings_of_dag,
)
from epochline.declare.pipeline import WITHOUT_INTERVALS, Pipeline
from epochline.declare.table import PostgresTable

_DOC = """
### One run, one checkpoint epoch

Reads **{source}**, writes **{sinks}**. `plan_epoch` writes the offset range to the ledger, `pre_commit` stages exactly
that range with Spark and seals it, `commit_epoch` makes it visible together with the offsets, in one transaction.{publish}

XCom `outcome` of `commit_epoch` and `abort_epoch`, or of `plan_epoch` if no epoch was planned, says in one line what
came of the run: *committed*, *aborted*, *pre-committed* or *no epoch*, with rows, reason and what to do. The tab *Epoch*
of the run begins with it.

| What you see | What it means | What to do |
|---|---|---|
| run green, outcome "committed" | the rows are visible, and the offsets moved with them | nothing |
| run skipped | nothing to read | nothing |
| run red, `abort_epoch` failed: "was aborted" | staging is discarded, no offset moved | the log of `abort_epoch` says why; clear the run from `plan_epoch` to try the same range again, or let the next run take it |
| run red, `abort_epoch`: "The pipeline is paused" | the next run would fail again: a target refuses the rows, or the restarts are used up | mend what the log names, then `epochline resume {name} --reason …` |
| `pre_commit` red, `abort_epoch` without a colour | the run was marked failed while the DAG was paused, and no teardown starts; the epoch stays PLANNED | unpause the DAG: `abort_epoch` runs, and the next run reads the range again |
| run red, "is pre-committed and was left so" | all rows are staged and sealed | nothing: the next run commits them; or clear `commit_epoch` |
| `plan_epoch`: "is being staged by run …" | another run holds the pipeline's epoch | wait; this run tries again by itself |
| you clear a committed run | its receipt is shown | nothing is written twice |
| you backfill an interval | the range ends where the interval ends; what is committed already is shown, not read again | nothing |
{publish_rows}
Trigger it by hand to read what is there now. *Record limit* bounds the epoch; *note* is kept in the ledger. An empty
field is as declared. Column `settings` of an epoch's row says which settings it ran with, and which level set each.

```sql
SELECT * FROM epochline.epochs WHERE pipeline = '{name}' ORDER BY epoch_id DESC LIMIT 10;
SELECT * FROM epochline.heads WHERE pipeline = '{name}';
SELECT * FROM epochline.receipts WHERE pipeline = '{name}' ORDER BY epoch_id DESC LIMIT 10;
```

Each epoch that a sink shows is an event of the asset `epochline://{name}/SINK`, with its id, rows and offsets.
"""  # noqa: E501 - rows of a Markdown table cannot be broken

_PUBLISH = " `publish` then\nshows it in {following}, with every other epoch that is due there."

_PUBLISH_ROWS = """\
| `publish` red, the other tasks green | a sink is down or refuses; the epoch is committed, and due there | read its log; where the sink is only down, nothing: the next run publishes all that is due, in order |
| `publish` green in a run that is otherwise skipped | nothing to read, but an earlier epoch was due or not announced yet | nothing |
| `plan_epoch` skipped: "epochs still to show" | too many epochs are due in a sink; the backlog waits in Kafka | mend the sink; each run publishes, and planning goes on by itself |
| you clear `publish` | what is shown is not written again | nothing |
"""  # noqa: E501 - as above


def build_dag(pipeline: Pipeline) -> DAG:
    """The DAG of a pipeline; its id is the pipeline's name.

    Params of the trigger form: ``record_limit``, ``note``, and the settings that one run may change.

    Raises:
        ConfigurationError: the settings file cannot be read.
    """
    settings = settings_of_dag(pipeline)
    tolerable = settings.tolerable_failures
    following = ", ".join(str(sink) for sink in pipeline.post_commit_sinks)
    with DAG(
        dag_id=pipeline.name,
        schedule=_schedule(pipeline, settings.interval),
        # A schedule needs a start date. Without catch-up the date has no other effect.
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # The ledger counts aborted epochs and refuses more; this keeps Airflow from starting runs to be refused (K11).
        # Airflow pauses the DAG at this number; 0 means never. With a sink that follows the commit it must be never:
        # a run is red while the sink is down, and later runs must still get their epochs.
        max_consecutive_failed_dag_runs=0 if tolerable is None or pipeline.post_commit_sinks else tolerable + 1,
        default_args={"retries": settings.restart.retries, "retry_delay": settings.restart.delay},
        tags=list(pipeline.tags),
        doc_md=_DOC.format(
            name=pipeline.name,
            source=pipeline.source.described,
            sinks=", ".join(
                f"{sink.table} ({sink.mode})" if isinstance(sink, PostgresTable) else str(sink)
                for sink in pipeline.sinks
            ),
            publish=_PUBLISH.format(following=following) if following else "",
            publish_rows=_PUBLISH_ROWS if following else "",
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
            pipeline=pipeline,
            task_id="commit_epoch",
            execution_timeout=COMMIT_PATIENCE + commit_patience(pipeline),
        )
        # Retries of its own: the restart strategy may allow none, or retry for ever.
        abort = AbortEpochOperator(
            pipeline=pipeline,
            task_id="abort_epoch",
            execution_timeout=timedelta(minutes=5),
            retries=2,
            retry_delay=timedelta(seconds=10),
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
                retries=2,
                retry_delay=timedelta(seconds=10),
            )
        plan >> pre_commit >> commit >> abort.as_teardown(setups=[plan, pre_commit], on_failure_fail_dagrun=True)
    return dag


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
