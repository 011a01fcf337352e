"""Resolved settings: of a DAG when its file is read, of a run when its task starts."""

import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import Param

from epochline.airflow.connections import ACTION, adapters, epochline_errors
from epochline.config.resolve import ResolvedSettings, file_settings, recorded_value, resolve_settings, run_settings
from epochline.declare.pipeline import Pipeline

log = logging.getLogger(__name__)

PLAN_PATIENCE = timedelta(minutes=5)
"""Covers two leases of another run and Kafka's time-outs. The minimum pause and `commit_patience` are added to it."""

PLAN_AGAIN = timedelta(seconds=10)
"""How long a plan that waited for another run's epoch leaves its worker. Airflow's executor must note its end first."""

COMMIT_PATIENCE = timedelta(minutes=1)
"""Covers Kafka's answer before a commit. `commit_patience` is added to it."""

STATEMENTS = 8
"""The most statements of a commit that go through the rows of one table."""

PUBLISH_PATIENCE = timedelta(hours=1)
"""For all epochs that are due. The next run publishes those that are left."""


def commit_patience(pipeline: Pipeline) -> timedelta:
    """The longest time that PostgreSQL lets a commit of this declaration take.

    The server ends each statement after ``commit_statement_timeout``. A shorter limit of a task would end a legal
    commit in its middle, roll it back, and end the next try as well.
    """
    # The quarantine is one more table.
    return pipeline.commit_statement_timeout * STATEMENTS * (len(pipeline.tables) + 1)


def settings_of_run(pipeline: Pipeline, dag: Any, context: Mapping[str, Any]) -> ResolvedSettings:
    """Settings of a task's run; fails the task if the run's conf holds a key or value that a run may not set."""
    with epochline_errors():
        conf = {name: value for name, value in (context["dag_run"].conf or {}).items() if name != ACTION}
        return resolve_settings(pipeline, file=file_settings(), run=run_settings(conf, dag.params))


def settings_of_epoch(
    pipeline: Pipeline, dag: Any, context: Mapping[str, Any], epoch_id: int
) -> tuple[timedelta, str | None]:
    """The time-out that was recorded with the epoch's plan, and how this worker's settings file differs, if it does.

    Every later step takes its settings from the epoch: a declaration that changes must not change an epoch half way.
    The log names the settings that this worker resolves differently. Where a settings file makes the difference, one of
    the two workers lacks it, and nobody knows which one is right. An operator's action records no settings; then this
    worker's time-out applies.
    """
    here = settings_of_run(pipeline, dag, context)
    with epochline_errors(), adapters().ledger(pipeline).transaction() as tx:
        epoch = tx.epochs.find(pipeline.name, epoch_id)
        recorded = {} if epoch is None else tx.history.settings(epoch)
    differing, by_file = list[str](), list[str]()
    for name, own in json.loads(json.dumps(here.recorded())).items():
        if name in recorded and recorded[name]["value"] != own["value"]:
            places = {recorded[name]["from"], own["from"]}
            said = (
                f"{name} is {recorded[name]['value']} ({recorded[name]['from']}), here {own['value']} ({own['from']})"
            )
            (by_file if places in ({"file"}, {"file", "default"}) else differing).append(said)
    if differing:
        log.warning(
            "epoch %d of %s keeps the settings of its plan, although this worker resolves others: %s. Give every worker"
            " the same declarations.",
            epoch_id, pipeline.name, "; ".join(differing),
        )  # fmt: skip
    seconds = recorded_value(recorded, "timeout")
    return here.timeout if seconds is None else timedelta(seconds=seconds), "; ".join(by_file) or None


def params() -> dict[str, Param]:
    """The params of a pipeline's DAG: all that a person may put into a run's conf."""
    return {
        "record_limit": _param(
            "Record limit", "Most offsets this epoch reads; empty: the declaration's.", "integer", minimum=1
        ),
        "note": _param("Note", "Kept with the epoch.", "string", maxLength=500),
        "minimum_pause": _param(
            "Minimum pause", "Seconds since the last commit before this epoch is planned; empty: as declared.",
            "number", minimum=0,
        ),
        "timeout": _param(
            "Time-out", "Seconds in which this epoch must be staged and sealed; empty: as declared.",
            "number", exclusiveMinimum=0,
        ),
        "on_cancel": Param(
            None, enum=[None, "retain", "delete"], title="On cancel",
            description="What happens to the epoch if it is sealed and the run ends without committing it.",
        ),
        "parallelism": _param(
            "Parallelism", "Spark tasks that read and stage at once; empty: as declared.", "integer", minimum=1
        ),
    }  # fmt: skip


def _param(title: str, description: str, kind: str, **limits: Any) -> Param:
    return Param(None, type=["null", kind], title=title, description=description, **limits)
