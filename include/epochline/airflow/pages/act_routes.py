"""Routes of actions: a form with a preview, and the start of the action's DAG. Nothing here writes to the ledger."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Form, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from epochline.airflow.acts import ACTS, Act
from epochline.airflow.pages import runs
from epochline.airflow.pages.access import edits, from_here, may_edit_dag, path_of, read
from epochline.airflow.pages.rendering import page
from epochline.airflow.previews import Foreseen, Given
from epochline.airflow.reading import Snapshot
from epochline.errors import ActionRefusedError, AlreadyStartedError, ForgedFormError, StalePreviewError

html = APIRouter(include_in_schema=False, dependencies=[Depends(may_edit_dag)])

MOST_CHARACTERS = 1000
"""Longest reason and longest parameter, in characters."""


def offered(dag_id: str, user: Any) -> dict[str, Any]:
    """What the page of a pipeline shows of actions: those that apply to its state, and those that pages started.

    What a run said is for those who may act: an error may name other pipelines.
    """
    may_act = edits(dag_id, user)
    rows = read(lambda ledger: ledger.ask("act_pipeline", pipeline=dag_id).rows) if may_act else ()
    return {
        "may_act": may_act,
        "acts": [act for act in ACTS.values() for row in rows if act.applies(row)],
        "started": runs.started(dag_id, in_short=not may_act),
    }


@html.get("/pipelines/{dag_id}/act/{action}")
def form_of_action(request: Request, dag_id: str, action: str, user: GetUserDep) -> Response:
    """The form of an action, with the preview as soon as enough is filled in. The query holds the parameters."""
    act = _act(action)
    # PostgreSQL keeps no text with a NUL.
    parameters = {name: value[:MOST_CHARACTERS].replace("\0", "") for name, value in request.query_params.items()}
    try:
        return _answer(request, dag_id, act, act.parse(parameters), user)
    except ActionRefusedError as error:
        read(_is_there(dag_id))
        return _page(request, dag_id, act, parameters, status=422, problem=str(error))


@html.post("/pipelines/{dag_id}/act/{action}", dependencies=[Depends(from_here)])
def start_action(
    request: Request, dag_id: str, action: str, user: GetUserDep, token: Annotated[str, Form(max_length=50_000)],
    reason: Annotated[str, Form(max_length=MOST_CHARACTERS)] = "",
) -> Response:  # fmt: skip
    """Start the previewed action, and lead back to the page of the pipeline. A form that is sent twice is refused."""
    act, reason = _act(action), reason.replace("\0", "")
    try:
        claim = runs.verified(token, user=user.get_id(), pipeline=dag_id, action=act.name)
    except ForgedFormError as error:
        raise HTTPException(403, str(error)) from None
    except StalePreviewError as error:
        return _answer(request, dag_id, act, {}, user, status=409, problem=str(error), reason=reason)
    foreseen = _foresee(dag_id, act, claim.given)
    problem = None
    if foreseen.refusal is None and runs.fingerprint(foreseen.state) != claim.state:
        problem = "The state has changed since the preview. Nothing was changed. Read the new preview."
    elif not reason.strip():
        problem = "Say why: the reason is kept in the ledger. Nothing was changed."
    elif foreseen.refusal is None:
        try:
            runs.start(claim, user=user.get_name(), reason=reason.strip(), state=foreseen.state)
            return RedirectResponse(f"../../{quote(dag_id, safe='')}#started", status_code=303)
        except AlreadyStartedError as error:
            return _page(request, dag_id, act, claim.given, status=409, problem=str(error))
        except ActionRefusedError as error:
            problem = str(error)
    return _answer(request, dag_id, act, claim.given, user, status=409, problem=problem, reason=reason)


def _act(action: str) -> Act:
    if action not in ACTS:
        raise HTTPException(404, "There is no such action.")
    return ACTS[action]


def _foresee(dag_id: str, act: Act, parameters: Given) -> Foreseen:
    def view(ledger: Snapshot) -> Foreseen | None:
        return act.foresee(ledger, dag_id, parameters) if ledger.ask("act_pipeline", pipeline=dag_id).rows else None

    # Only an inspector may compare the reasons of quarantined records.
    foreseen: Foreseen = read(view, inspect="like" in parameters)
    return foreseen


def _is_there(dag_id: str) -> Any:
    return lambda ledger: ledger.ask("act_pipeline", pipeline=dag_id).rows or None


def _answer(
    request: Request, dag_id: str, act: Act, parameters: Given, user: Any, *, status: int = 200,
    problem: str | None = None, reason: str = "",
) -> Response:  # fmt: skip
    if not act.is_complete(parameters):
        read(_is_there(dag_id))
        return _page(request, dag_id, act, parameters, status=status, problem=problem)
    foreseen = _foresee(dag_id, act, parameters)
    hindered, token = runs.obstacle(act.name, dag_id), None
    if foreseen.refusal is None and hindered is None:
        token = runs.signed(
            user=user.get_id(), pipeline=dag_id, action=act.name, given=parameters, state=foreseen.state
        )
    return _page(
        request, dag_id, act, parameters, status=status, problem=problem, foreseen=foreseen, hindered=hindered,
        token=token, reason=reason,
    )  # fmt: skip


def _page(
    request: Request, dag_id: str, act: Act, parameters: Mapping[str, Any], *, status: int, problem: str | None,
    foreseen: Foreseen | None = None, hindered: str | None = None, token: str | None = None, reason: str = "",
) -> Response:  # fmt: skip
    return page(
        "act.html", path_of(request), status, pipeline=dag_id, act=act, given=parameters, problem=problem,
        foreseen=foreseen, hindered=hindered, token=token, reason=reason, most=MOST_CHARACTERS,
    )  # fmt: skip
