"""Operators' actions as DAGs: one per row of `epochline.operations.DAG_ACTIONS`, and two with a schedule.

A run without *confirm* logs the preview and is skipped. Some actions are epochs. The action's DAG then starts runs of
the pipeline's own DAG, whose conf names the action; those runs plan, stage and commit the epochs.
A run that a page started has the state of the ledger that the page showed in *expected*, and does nothing if the state
is another one now.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, BaseOperator, Context, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from epochline.airflow.acts import ACTS
from epochline.airflow.connections import (
    ACTION,
    SAID,
    actor_of,
    adapters,
    dag_of_action,
    epochline_errors,
    run_of,
    subject_of,
)
from epochline.airflow.dag_file import folder_of_task
from epochline.airflow.reading import snapshot
from epochline.airflow.settings import commit_patience
from epochline.config.connections import POSTGRES
from epochline.config.discovery import find, look
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, EpochlineError, StalePreviewError, one_line
from epochline.operations import (
    DAG_ACTIONS,
    Action,
    ActionPreview,
    DirectAction,
    EpochAction,
    Request,
    refresh_log_ends,
    tidy,
)
from epochline.operations.runs import Retry

log = logging.getLogger(__name__)

_OF_EVERY_DAG: dict[str, Any] = {
    "start_date": datetime(2026, 1, 1, tzinfo=UTC), "catchup": False, "max_active_runs": 1,
    "tags": ["epochline", "operations"],
}  # fmt: skip
_PATIENCE = timedelta(minutes=15)
_MOST_STEPS = 1000
_LONGEST_NOTE = 500


def operation_dags() -> dict[str, DAG]:
    """The manual DAGs, by their ids: ``epochline_abort``, ``epochline_requeue`` and so on."""
    return {dag.dag_id: dag for dag in map(_dag_of, DAG_ACTIONS.values())}


def janitor_dag() -> DAG:
    """The scheduled DAG that tidies each database that a declared pipeline names."""
    doc = "Drops staging that no attempt needs, ends abandoned epochs, reports tables that no attempt explains."
    with DAG(dag_id="epochline_janitor", schedule=timedelta(hours=1), doc_md=doc, **_OF_EVERY_DAG) as dag:
        JanitorOperator(task_id="tidy", execution_timeout=timedelta(minutes=30))
    return dag


def log_ends_dag() -> DAG:
    """The scheduled DAG that asks Kafka where the logs of all declared pipelines end, for the pages.

    It runs from the start, also where new DAGs are paused: it reads, and changes nothing that a pipeline decides by.
    """
    doc = "Stores where logs end and how long Kafka keeps them. The pages show both with their age."
    with DAG(
        dag_id="epochline_log_ends", schedule=timedelta(minutes=5), is_paused_upon_creation=False, doc_md=doc,
        **_OF_EVERY_DAG,
    ) as dag:  # fmt: skip
        LogEndsOperator(task_id="ask", execution_timeout=timedelta(minutes=4))
    return dag


class ActionOperator(BaseOperator):
    """Log what an action would do; with *confirm*, do it.

    :param action: its name in `epochline.operations.DAG_ACTIONS`.
    :return: for an action whose work is epochs, the conf of each run to start.
    """

    def __init__(self, *, action: str, **options: Any) -> None:
        super().__init__(**options)
        self.action = action

    def pre_execute(self, context: Any) -> None:
        """Give a restore the time of a commit: it changes the same tables, under the same time-outs."""
        with suppress(EpochlineError):  # the task itself says that there is no such declaration
            declared = find(context["params"]["pipeline"], folder_of_task(context))
            self.execution_timeout = _PATIENCE + commit_patience(declared)

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Preview, then act. What is said goes to the log, and to the page that started the run."""
        transcript: list[str] = []
        try:
            return self._act(context, transcript)
        except Exception as error:
            transcript.append(str(error))
            raise
        finally:
            context["ti"].xcom_push(key=SAID, value="\n".join(transcript))

    def _act(self, context: Context, transcript: list[str]) -> list[dict[str, Any]]:
        params, action = dict(context["params"]), DAG_ACTIONS[self.action]
        pipeline, reason, confirmed = (params.pop(name) for name in ("pipeline", "reason", "confirm"))
        expected = params.pop("expected", None)
        with epochline_errors():
            request = Request(actor=actor_of(context), reason=reason)
            self.log.info("%s of %s, asked for by %s", action.name, pipeline, request)
            parameters = action.parse(params)
            declared = find(pipeline, folder_of_task(context))
            subject = subject_of(declared)
            previewed = action.preview(subject, parameters)
            self._say(transcript, previewed.lines)
            if previewed.refusal is not None:
                raise AirflowFailException(f"{previewed.refusal} Nothing was changed.")
            if expected is not None:
                _refuse_a_stale_preview(declared, action, parameters, expected, previewed)
            if not confirmed:
                raise AirflowSkipException("Not confirmed: nothing was changed. Trigger the DAG again with confirm.")
            if isinstance(action, EpochAction):
                values = parameters.model_dump(exclude_none=True)
                conf = {"name": action.name, "parameters": values, "actor": request.actor, "reason": reason}
                runs = min(previewed.epochs, _MOST_STEPS)
                log = "%s: the next task starts %d runs of %s, which plan the epochs"
                self.log.info(log, action.name, runs, pipeline)
                return [{ACTION: conf}] * runs
            if isinstance(action, DirectAction):
                act = action.act(subject, action.pinned(parameters, previewed), request)
                self._say(transcript, act.lines)
        return [{"note": f"retry by {request}"[:_LONGEST_NOTE]}] if isinstance(action, Retry) else []

    def _say(self, transcript: list[str], lines: Sequence[str]) -> None:
        transcript.extend(lines)
        for line in lines:
            self.log.info(line)


class JanitorOperator(BaseOperator):
    """Tidy each database that a declared pipeline names, or else the default one. A broken file hides no other."""

    def execute(self, context: Context) -> None:
        """Tidy, and log what was found and which declarations are broken; fail if there is no pipeline at all."""
        with epochline_errors():
            for connection in _ledgers(context):
                tidied = tidy(adapters().ledger(connection), run_of(context))
                for line in tidied.lines():
                    self.log.info("%s: %s", connection, line)


def _refuse_a_stale_preview(
    declared: Pipeline, action: Action[Any, Any], parameters: Any, expected: Any, previewed: ActionPreview
) -> None:
    """Refuse to do something else than what a page showed of the ledger, or for a loss of Kafka."""
    values = parameters.model_dump(mode="json", exclude_defaults=True)
    with snapshot(adapters().postgres_dsn(declared.postgres_connection)) as ledger:
        act = ACTS.get(action.name)
        state = None if act is None else act.foresee(ledger, declared.name, values).state
    lost = previewed.after.get("lost", expected.get("lost"))
    if state != expected or lost != expected.get("lost"):
        raise StalePreviewError(
            f"{declared.name}: the state has changed since the page was read. Nothing was changed. Open the page of the"
            " action again, and read the new preview."
        )


class LogEndsOperator(BaseOperator):
    """Store where the logs of all pipelines end. A Kafka or ledger that does not answer hides no other."""

    def execute(self, context: Context) -> None:
        """Ask each Kafka once for all pipelines that share it and a ledger; fail at the end if one did not answer."""
        by_servers: defaultdict[tuple[str, str], list[Pipeline]] = defaultdict(list)
        failed: list[EpochlineError] = []
        with epochline_errors():
            for postgres, pipelines_of in _ledgers(context).items():
                try:
                    pipelines = pipelines_of()
                except EpochlineError as error:
                    self.log.warning("%s: %s", postgres, error)
                    failed.append(error)
                    continue
                for pipeline in pipelines:
                    for kafka in {source.connection for source in pipeline.kafka_sources.values()}:
                        by_servers[kafka, postgres].append(pipeline)
            for (kafka, postgres), pipelines in by_servers.items():
                try:
                    with adapters().kafka(kafka) as source:
                        partitions = refresh_log_ends(adapters().ledger(postgres), source, pipelines, kafka)
                    self.log.info("%s, %s: %d partitions of %d pipelines", kafka, postgres, partitions, len(pipelines))
                except EpochlineError as error:
                    self.log.warning("%s, %s: %s", kafka, postgres, error)
                    failed.append(error)
            if failed:
                raise failed[0]


def _ledgers(context: Context) -> Mapping[str, Callable[[], Sequence[Pipeline]]]:
    """The ledgers of the pipelines that files of the task's bundle declare, by connection id; each gives its pipelines.

    Files of another bundle are not seen here. If no file declares a pipeline, the only ledger is that of the default
    connection, which is asked here for the pipelines that it knows.

    Raises:
        ConfigurationError: that ledger has no epoch either.
    """
    folder = folder_of_task(context)
    declared = look(folder)
    for error in declared.broken:
        log.error("broken declaration: %s", one_line(error))
    if declared.pipelines:
        connections = sorted({pipeline.postgres_connection for pipeline in declared.pipelines.values()})
        return {connection: partial(_pipelines_of, connection, declared.pipelines) for connection in connections}
    log.warning("no file in %s declares a pipeline: this task takes those in the ledger of %s", folder, POSTGRES)
    stored = _pipelines_of(POSTGRES, {})
    if not stored:
        raise ConfigurationError(
            f"no file in {folder} declares a pipeline, and the ledger of {POSTGRES} has no epoch of one, so this task"
            " has nothing to do. Put the file of this DAG into the bundle of your pipelines, or set EPOCHLINE_DAGS to"
            " their folder."
        )
    return {POSTGRES: lambda: stored}


def _pipelines_of(connection: str, declared: Mapping[str, Pipeline]) -> Sequence[Pipeline]:
    """The pipelines of a ledger: as files declare them, and those of no file as their newest epoch was planned."""
    found = [pipeline for pipeline in declared.values() if pipeline.postgres_connection == connection]
    with adapters().ledger(connection).transaction() as tx:
        for name in tx.epochs.pipelines():
            if name in declared or tx.operators.standing(name).dropped is not None:
                continue
            row = tx.epochs.pipeline(name)
            newest = None if row is None else tx.epochs.find(name, row.last_epoch_id)
            stored = tx.epochs.last_declaration(name) if newest is None else tx.epochs.declaration(newest)
            found += [] if stored is None else [stored]
    return found


def _dag_of(action: Action[Any, Any]) -> DAG:
    with DAG(
        dag_id=dag_of_action(action.name), schedule=None, is_paused_upon_creation=False, params=_params(action),
        doc_md=f"{action.help}\n\nWithout *confirm* only the preview is logged.", **_OF_EVERY_DAG,
    ) as dag:  # fmt: skip
        act = ActionOperator(task_id="act", action=action.name, execution_timeout=_PATIENCE, retries=0)
        if isinstance(action, EpochAction | Retry):
            # Airflow does not render mapped values again: a reason with braces in it stays text.
            TriggerDagRunOperator.partial(task_id="run", trigger_dag_id="{{ params.pipeline }}").expand(conf=act.output)
    return dag


def _params(action: Action[Any, Any]) -> dict[str, Param]:
    params = {
        "pipeline": Param(type="string", minLength=1, title="Pipeline"),
        "reason": Param(type="string", minLength=1, title="Reason", description="Why; kept in the ledger."),
        "confirm": Param(False, type="boolean", title="Confirm", description="Without it only the preview is logged."),
        "expected": Param(
            None, type=["null", "object"], title="Expected",
            description="The state that a page showed; the run does nothing if it has changed.",
        ),
    }  # fmt: skip
    for name, schema in action.parameters.model_json_schema().get("properties", {}).items():
        choices = schema.get("anyOf", [schema])
        kinds = [choice["type"] for choice in choices]
        limits = {key: choice[key] for choice in choices for key in ("minimum", "enum") if key in choice}
        params[name] = Param(
            **{"default": schema["default"]} if "default" in schema else {},
            type=kinds[0] if len(kinds) == 1 else kinds,
            title=name.capitalize(),
            description=schema.get("description"),
            **limits,
        )
    return params
