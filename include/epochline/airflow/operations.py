"""Operators' actions as DAGs: one per row of `epochline.operations.ACTIONS`, and one for the janitor.

A run without *confirm* logs the preview and is skipped. Some actions are epochs. The action's DAG then starts runs of
the pipeline's own DAG, whose conf names the action; those runs plan, stage and commit the epochs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from epochline.airflow.action_runs import actor_of, subject_of
from epochline.airflow.connections import epochline_errors, ledger_at, run_of
from epochline.airflow.settings import ACTION
from epochline.config.discovery import dags_folder, find, find_all
from epochline.operations import ACTIONS, Action, DirectAction, EpochAction, Request, tidy

if TYPE_CHECKING:
    from airflow.sdk import Context

_TAGS = ["epochline", "operations"]
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_STEPS = 1000


def operation_dags() -> dict[str, DAG]:
    """The manual DAGs, by their ids: ``epochline_abort``, ``epochline_requeue`` and so on."""
    return {dag.dag_id: dag for dag in map(_dag_of, ACTIONS.values())}


def janitor_dag(schedule: timedelta = timedelta(hours=1)) -> DAG:
    """The scheduled DAG that tidies each database that a declared pipeline names."""
    with DAG(
        dag_id="epochline_janitor", schedule=schedule, start_date=_BEGIN, catchup=False, max_active_runs=1, tags=_TAGS,
        doc_md="Drops staging that no attempt needs, ends abandoned epochs, reports tables that no attempt explains.",
    ) as dag:  # fmt: skip
        JanitorOperator(task_id="tidy", execution_timeout=timedelta(minutes=30))
    return dag


class ActionOperator(BaseOperator):
    """Log what an action would do; with *confirm*, do it.

    :param action: its name in `epochline.operations.ACTIONS`.
    :return: for an action whose work is epochs, the conf of each run to start.
    """

    def __init__(self, *, action: str, **options: Any) -> None:
        super().__init__(**options)
        self.action = action

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Preview, then act."""
        params, action = dict(context["params"]), ACTIONS[self.action]
        pipeline, reason, confirmed = (params.pop(name) for name in ("pipeline", "reason", "confirm"))
        with epochline_errors():
            request = Request(actor=actor_of(context), reason=reason)
            parameters = action.parse(params)
            subject = subject_of(find(pipeline, _dags_folder()))
            previewed = action.preview(subject, parameters)
            for line in previewed.lines:
                self.log.info(line)
            if previewed.refusal is not None:
                raise AirflowFailException(f"{previewed.refusal} Nothing was changed.")
            if not confirmed:
                raise AirflowSkipException("Not confirmed: nothing was changed. Trigger the DAG again with confirm.")
            if isinstance(action, EpochAction):
                conf_of_run = {
                    "name": action.name, "parameters": parameters.model_dump(exclude_none=True), "actor": request.actor,
                    "reason": request.reason,
                }  # fmt: skip
                return [{ACTION: conf_of_run}] * min(previewed.epochs, _MOST_STEPS)
            if isinstance(action, DirectAction):
                for line in action.act(subject, parameters, request).lines:
                    self.log.info(line)
        return []


class JanitorOperator(BaseOperator):
    """Tidy each database that a declared pipeline names."""

    def execute(self, context: Context) -> None:
        """Tidy, and log what was found."""
        with epochline_errors():
            for connection in sorted({one.postgres_connection for one in find_all(_dags_folder()).values()}):
                tidied = tidy(ledger_at(connection), run_of(context))
                for line in tidied.lines():
                    self.log.info("%s: %s", connection, line)


def _dags_folder() -> Path:
    """The folder that EPOCHLINE_DAGS names; if it is not set, Airflow's own DAGs folder."""
    return dags_folder(Path(conf.get("core", "dags_folder")))


def _dag_of(action: Action[Any, Any]) -> DAG:
    with DAG(
        dag_id=f"epochline_{action.name.replace('-', '_')}", schedule=None, start_date=_BEGIN, catchup=False,
        max_active_runs=1, tags=_TAGS, doc_md=f"{action.help}\n\nWithout *confirm* only the preview is logged.",
        params=_params(action),
    ) as dag:  # fmt: skip
        act = ActionOperator(task_id="act", action=action.name, execution_timeout=timedelta(minutes=15), retries=0)
        if isinstance(action, EpochAction):
            # Airflow does not render mapped values again: a reason with braces in it stays text.
            TriggerDagRunOperator.partial(task_id="run", trigger_dag_id="{{ params.pipeline }}").expand(conf=act.output)
    return dag


def _params(action: Action[Any, Any]) -> dict[str, Param]:
    params = {
        "pipeline": Param(type="string", minLength=1, title="Pipeline"),
        "reason": Param(type="string", minLength=1, title="Reason", description="Why; kept in the ledger."),
        "confirm": Param(False, type="boolean", title="Confirm", description="Without it only the preview is logged."),
    }
    for name, schema in action.parameters.model_json_schema().get("properties", {}).items():
        kinds = [one["type"] for one in schema.get("anyOf", [schema])]
        limits = {
            key: value
            for one in schema.get("anyOf", [schema])
            for key, value in one.items()
            if key in ("minimum", "enum")
        }
        default = {"default": schema["default"]} if "default" in schema else {}
        params[name] = Param(
            **default,
            type=kinds[0] if len(kinds) == 1 else kinds,
            title=name.capitalize(),
            description=schema.get("description"),
            **limits,
        )
    return params
