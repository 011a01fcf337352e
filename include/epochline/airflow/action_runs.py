"""Runs of a pipeline's own DAG that an operator's action started. Their conf names the action that plans the epoch.

Every task of a pipeline imports this module. Airflow's operator that starts DAG runs imports Airflow's database models,
which takes half a second, so this module must not import that operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epochline.airflow.connections import adapters, run_of, writers_of
from epochline.airflow.settings import ACTION
from epochline.declare.pipeline import Pipeline

if TYPE_CHECKING:
    from epochline.coordinator import Plan
    from epochline.operations import Subject


SAID = "said"
"""Key of the XCom in which the task of an action leaves what it said, for the page that started the run."""


def dag_of_action(name: str) -> str:
    """The id of the DAG that carries out an action."""
    return f"epochline_{name.replace('-', '_')}"


def planned_by_action(context: Mapping[str, Any], pipeline: Pipeline) -> Plan | None:
    """The plan of a run whose conf names an action; None for every other run.

    Raises:
        ActionRefusedError: the conf names no such action, or the action is refused.
    """
    named = (context["dag_run"].conf or {}).get(ACTION)
    if named is None:
        return None
    from epochline.errors import ActionRefusedError
    from epochline.operations import ACTIONS, EpochAction, Request

    action = ACTIONS.get(str(named.get("name"))) if isinstance(named, Mapping) else None
    if not isinstance(action, EpochAction):
        raise ActionRefusedError(f"{pipeline.name}: the run's conf names no action that is an epoch.")
    request = Request(actor=actor_of(context, named.get("actor")), reason=str(named.get("reason") or ""))
    parameters = action.parse(named.get("parameters") or {})
    return action.plan(subject_of(pipeline), parameters, request, run_of(context), writers=writers_of(pipeline))


def subject_of(pipeline: Pipeline) -> Subject:
    """A declared pipeline with the ledger and the Kafka behind its connections."""
    from epochline.operations import Subject

    return Subject(
        name=pipeline.name, ledger=adapters().ledger(pipeline), declared=pipeline, source=adapters().offsets(pipeline)
    )


def actor_of(context: Mapping[str, Any], in_conf: object = None) -> str:
    """The user that triggered the run, from Airflow; else the actor in the run's conf; else the run itself.

    Airflow comes first because a conf can name any user.
    """
    run = context["dag_run"]
    return str(getattr(run, "triggering_user_name", None) or in_conf or f"run {run.run_id} of {run.dag_id}")
