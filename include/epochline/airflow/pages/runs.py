"""Runs of the actions' DAGs: start one from a signed preview, and find those that the pages started.

A form that acts carries what its page showed, to whom, and of which state of the ledger.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.configuration import conf
from airflow.exceptions import DagNotFound, DagRunAlreadyExists
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from epochline.airflow.acts import ACTS
from epochline.airflow.connections import SAID, dag_of_action
from epochline.errors import ActionRefusedError, AlreadyStartedError, ForgedFormError, StalePreviewError

_SHOWN = 5
VALID_SECONDS = 15 * 60
"""A preview can be confirmed for so long."""


class Claim(BaseModel):
    """What a token says. The nonce makes the id of the run, so that a form starts one run at most."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str
    pipeline: str
    action: str
    given: dict[str, Any]
    state: str
    nonce: str


def signed(*, user: str, pipeline: str, action: str, given: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """A token with a new nonce."""
    claim = Claim(
        user=user, pipeline=pipeline, action=action, given=dict(given), state=fingerprint(state),
        nonce=secrets.token_hex(8),
    )  # fmt: skip
    return _serializer().dumps(claim.model_dump())


def verified(token: str, *, user: str, pipeline: str, action: str) -> Claim:
    """What a token says; an error if it was made elsewhere, for something else, or more than `VALID_SECONDS` ago."""
    try:
        claim = Claim.model_validate(_serializer().loads(token, max_age=VALID_SECONDS))
    except SignatureExpired:
        raise StalePreviewError("The preview is older than 15 minutes. Nothing was changed.") from None
    except (BadSignature, ValidationError):
        raise ForgedFormError("The form was not made by this Airflow. Nothing was changed.") from None
    if (claim.user, claim.pipeline, claim.action) != (user, pipeline, action):
        raise ForgedFormError("The form was made for another user, pipeline or action. Nothing was changed.")
    return claim


def fingerprint(state: Mapping[str, Any]) -> str:
    """A digest of a state. Equal states have equal digests."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _serializer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(conf.get_mandatory_value("api", "secret_key"), salt="epochline.act")


def obstacle(action: str, pipeline: str) -> str | None:
    """Why a run of an action's DAG, or a run of the pipeline's DAG that it starts, would wait; None if none would."""
    needed = [dag_of_action(action), *([pipeline] if ACTS[action].starts_runs else [])]
    with create_session() as session:
        paused = {
            dag.dag_id: dag.is_paused
            for dag in session.scalars(select(DagModel).where(DagModel.dag_id.in_(needed), ~DagModel.is_stale))
        }
    for dag_id in needed:
        if dag_id not in paused:
            return f"Airflow has no DAG {dag_id}."
        if paused[dag_id]:
            return f"The DAG {dag_id} is paused in Airflow. Unpause it, so that its runs start."
    return None


def start(claim: Claim, *, user: str, reason: str, state: Mapping[str, Any]) -> str:
    """Start the run of a previewed action, and return its id. A form starts one run at most.

    Raises:
        AlreadyStartedError: the form was sent before; its run is there.
        ActionRefusedError: the DAG does not exist, is paused, or refuses a parameter.
    """
    hindered = obstacle(claim.action, claim.pipeline)
    if hindered is not None:
        raise ActionRefusedError(f"{hindered} Nothing was changed.")
    run_id = f"{_prefix(claim.pipeline)}{claim.action}:{claim.nonce}"
    conf = {**claim.given, "pipeline": claim.pipeline, "reason": reason, "confirm": True, "expected": dict(state)}
    by: dict[str, Any] = {"triggered_by": DagRunTriggeredByType.UI, "triggering_user_name": user}
    try:
        trigger_dag(dag_of_action(claim.action), run_id=run_id, conf=conf, **by)
    except (DagRunAlreadyExists, IntegrityError):
        raise AlreadyStartedError(
            "This form was sent before. Its run is there, and no second one was started."
        ) from None
    except (DagNotFound, ValueError) as error:
        raise ActionRefusedError(f"Airflow started no run ({type(error).__name__}). Nothing was changed.") from error
    return run_id


def started(pipeline: str, *, in_short: bool) -> Sequence[Mapping[str, Any]]:
    """The newest runs that pages started for a pipeline, as the template shows them.

    ``said`` is what the task of the action said; empty before its end, and ``in_short``.
    """
    dags = {dag_of_action(name): name for name in ACTS}
    with create_session() as session:
        runs = session.scalars(
            select(DagRun)
            .where(DagRun.dag_id.in_(dags), DagRun.run_id.startswith(_prefix(pipeline), autoescape=True))
            .order_by(DagRun.id.desc())
            .limit(_SHOWN)
        ).all()
        return [
            {
                "action": dags[run.dag_id],
                "dag_id": run.dag_id,
                "run_id": run.run_id,
                "state": str(run.state),
                "user": run.triggering_user_name or "",
                "reason": str((run.conf or {}).get("reason", "")),
                "queued_at": run.queued_at,
                "said": "" if in_short else _said(session, run),
            }
            for run in runs
        ]


def _said(session: Any, run: DagRun) -> str:
    xcom = session.scalars(
        XComModel.get_many(run_id=run.run_id, key=SAID, dag_ids=run.dag_id, task_ids="act", limit=1)
    ).first()
    return "" if xcom is None else str(XComModel.deserialize_value(xcom))


def _prefix(pipeline: str) -> str:
    return f"page:{pipeline}:"
