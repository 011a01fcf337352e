"""A declaration's DAG: ``plan_epoch >> pre_commit [>> approve_epoch] >> commit_epoch [>> publish]``.

``abort_epoch`` is the teardown. The same tasks as a group of a user's own DAG.
"""

from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow.sdk import (
    DAG,
    AssetOrTimeSchedule,
    BaseOperator,
    CronDataIntervalTimetable,
    DeltaDataIntervalTimetable,
    TaskGroup,
)
from airflow.sdk.definitions.taskgroup import MappedTaskGroup
from jinja2 import StrictUndefined, Template

from epochline.airflow.operators import AbortEpochOperator, CommitEpochOperator, PlanEpochOperator, PublishOperator
from epochline.airflow.pre_commit import PreCommitOperator
from epochline.airflow.settings import COMMIT_PATIENCE, PLAN_PATIENCE, PUBLISH_PATIENCE, commit_patience, params
from epochline.config.resolve import ResolvedSettings, file_settings, resolve_settings
from epochline.declare.pipeline import WITHOUT_INTERVALS, Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import DeclarationError

_DOC = Template(Path(__file__).with_name("dag.md.jinja").read_text(), trim_blocks=True, undefined=StrictUndefined)

_RETRY_POLICIES = find_spec("airflow.sdk.definitions.retry_policy") is not None
"""Whether the ledger chooses the pause before a retry. Airflow 3.2 always waits the restart strategy's own delay."""

_HELD: dict[str, Any] = {
    "trigger_rule": "all_success", "depends_on_past": False, "wait_for_downstream": False,
    "retry_exponential_backoff": 0, "max_retry_delay": None, **({"retry_policy": None} if _RETRY_POLICIES else {}),
    "do_xcom_push": True, "multiple_outputs": False, "render_template_as_native_obj": False,
}  # fmt: skip
"""What an epoch relies on; default_args of a surrounding DAG do not change it."""

_NOT_BY_DEFAULT = ("application", "epoch_id")
"""Arguments of these tasks that no default_args may give: they would stage or commit something else."""


class EpochTasks(TaskGroup):
    """The tasks of an epoch. A task after them needs the commit, and the publication if a sink follows the commit."""

    def get_leaves(self) -> Generator[BaseOperator, None, None]:
        """The tasks that a task after the group waits for: all that are done by a green run."""
        yield from (task for task in self if task.task_id in ("commit_epoch", "publish"))


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
        tags=list(pipeline.tags),
        doc_md=_doc(pipeline),
        params=params(),
    ) as dag:
        _make_tasks(pipeline, settings)
    return dag


def build_group(pipeline: Pipeline) -> EpochTasks:
    """The tasks of a pipeline as a group of the DAG around; raises as `epochline.airflow.dag_file.epoch_tasks`."""
    try:
        # Without a prefix: pages, links and templates know the tasks by their ids.
        group = EpochTasks(group_id="epoch", prefix_group_id=False)
    except RuntimeError:
        raise DeclarationError(f"epoch_tasks of {pipeline.name!r} must be called within `with DAG(...)`.") from None
    group.doc_md = _doc(pipeline)  # no argument: Airflow 3.2 takes none, and shows none
    settings = resolve_settings(pipeline, file=file_settings())
    problem = next(_unfit(group, pipeline, settings), None)
    if problem is not None:
        raise DeclarationError(f"DAG {group.dag.dag_id!r} cannot hold the epochs of {pipeline.name!r}: {problem}")
    for name, param in params().items():
        group.dag.params[name] = param
    with group:
        _make_tasks(pipeline, settings)
    return group


def schedule_of(pipeline: Pipeline) -> Any:
    """The schedule of a pipeline's DAG, as the declaration or the settings file gives it. Its runs have intervals."""
    return _schedule(pipeline, resolve_settings(pipeline, file=file_settings()).interval)


def _unfit(group: TaskGroup, pipeline: Pipeline, settings: ResolvedSettings) -> Iterator[str]:
    """Why the DAG around a group cannot keep what `epoch_dag` promises, and what to change."""
    dag = group.dag
    if dag.dag_id != pipeline.name:
        yield f"pages, actions and commands find the DAG by the pipeline's name. Set dag_id={pipeline.name!r}."
    if dag.max_active_runs != 1:
        yield f"max_active_runs is {dag.max_active_runs}. A pipeline has one epoch at a time: set max_active_runs=1."
    if dag.dagrun_timeout is not None:
        yield "a run that dagrun_timeout ends does not abort its epoch. Set Settings(timeout=...) instead of it."
    declared = _schedule(pipeline, settings.interval)
    if declared is not None and dag.schedule != declared:
        yield "its schedule is not the one that the pipeline declares. Set schedule=epoch_schedule(pipeline)."
    taken = sorted({*params()} & {*dag.params})
    if taken:
        yield f"its param {taken[0]!r} is a setting of epochs, which epoch_tasks adds by itself. Rename the param."
    given = sorted({*_NOT_BY_DEFAULT} & {**dag.default_args, **group.default_args}.keys())
    if given:
        yield f"default_args must not set {given[0]!r} for the tasks of an epoch. Give it to your own tasks."
    parent = group.parent_group
    while parent is not None:
        if isinstance(parent, MappedTaskGroup):
            yield f"the task group {parent.group_id!r} is expanded. A run has one epoch: call epoch_tasks outside it."
        parent = parent.parent_group


def _make_tasks(pipeline: Pipeline, settings: ResolvedSettings) -> None:
    """Make the tasks in the DAG or group that is open."""
    options = {**_HELD, "retries": settings.restart.retries, "retry_delay": settings.restart.delay}
    plan = PlanEpochOperator(
        pipeline=pipeline,
        task_id="plan_epoch",
        record_limit="{{ params.record_limit or '' }}",
        note="{{ params.note or '' }}",
        # It may commit what another run has sealed.
        execution_timeout=PLAN_PATIENCE + settings.minimum_pause + commit_patience(pipeline),
        # It waits for the epoch of another run, such as of a backfill. If plans took every worker, none would be left
        # for that epoch.
        max_active_tis_per_dag=1,
        **options,
    )
    pre_commit = PreCommitOperator(
        pipeline=pipeline,
        task_id="pre_commit",
        execution_timeout=settings.timeout,
        **{**options, **_retried_by_ledger(pipeline)},
    )
    commit = CommitEpochOperator(
        pipeline=pipeline,
        task_id="commit_epoch",
        execution_timeout=COMMIT_PATIENCE + commit_patience(pipeline),
        **options,
    )
    # Not as the restart strategy says: it may allow no retry, or retry for ever.
    few_retries = {**options, "retries": 2, "retry_delay": timedelta(seconds=10)}
    abort = AbortEpochOperator(
        pipeline=pipeline, task_id="abort_epoch", execution_timeout=timedelta(minutes=5), **few_retries
    )
    for setup in (plan, pre_commit):
        setup.is_setup = True
    if pipeline.post_commit_sinks:
        # Also after a run that failed or had nothing to read: epochs of earlier runs may be due, and must not wait
        # until a run succeeds. The task itself fails if the run has failed.
        # Fewer retries than the restart strategy may allow: a sink that is down must not delay the next run's epoch.
        patience = max([PUBLISH_PATIENCE, *(2 * topic.transaction_timeout for topic in pipeline.topics)])
        commit >> PublishOperator(
            pipeline=pipeline,
            task_id="publish",
            execution_timeout=patience,
            **{**few_retries, "trigger_rule": "all_done"},
        )
    ready: BaseOperator = pre_commit
    if _waits(pipeline):
        from epochline.airflow.approval import ApproveEpochOperator

        # A wait for a person has no time-out, whatever default_args say.
        ready = ApproveEpochOperator(pipeline=pipeline, task_id="approve_epoch", execution_timeout=None, **few_retries)
        pre_commit >> ready
    plan >> pre_commit
    ready >> commit >> abort.as_teardown(setups=[plan, pre_commit], on_failure_fail_dagrun=True)


def _waits(pipeline: Pipeline) -> bool:
    """Whether an epoch may wait for a person; the task that asks exists only then."""
    return pipeline.bounds is not None and pipeline.bounds.outside == "wait"


def _retried_by_ledger(pipeline: Pipeline) -> dict[str, Any]:
    if not _RETRY_POLICIES:
        return {}
    from epochline.airflow.retry import RetryByLedger

    return {"retry_policy": RetryByLedger(pipeline)}


def _doc(pipeline: Pipeline) -> str:
    text: str = _DOC.render(
        name=pipeline.name,
        source=pipeline.source.described,
        sinks=", ".join(map(_described, pipeline.sinks)),
        following=", ".join(str(sink) for sink in pipeline.post_commit_sinks),
        waits=_waits(pipeline),
    )
    return text


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
