"""The pages as a FastAPI application, which the plugin mounts in Airflow's API server."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.base import RequestResponseEndpoint

from epochline.airflow.pages import act_routes, quarantine, scraping, views, why
from epochline.airflow.pages.access import (
    declared,
    edits,
    may_edit_dag,
    may_read_dag,
    may_see_pages,
    path_of,
    read,
    readable,
)
from epochline.airflow.pages.rendering import page
from epochline.airflow.reading import Snapshot
from epochline.errors import EpochlineError, LedgerError

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STATIC = Path(__file__).with_name("static")
Chosen = Annotated[views.HistoryFilter, Query()]
Records = Annotated[quarantine.QuarantineFilter, Query()]


html = APIRouter(include_in_schema=False)
json = APIRouter(prefix="/api", tags=["ledger"])


@html.get("/")
def all_pipelines(request: Request, user: GetUserDep) -> Response:
    """Every pipeline that the user may see."""
    return page("pipelines.html", path_of(request), view=_pipelines(user))


def _pipelines(user: Any) -> views.PipelinesView:
    view: views.PipelinesView = read(
        partial(views.pipelines_view, may_see=lambda names: readable(names, user), declared=declared())
    )
    return view


@html.get("/pipelines/{dag_id}", dependencies=[Depends(may_read_dag)])
def one_pipeline(request: Request, dag_id: str, chosen: Chosen, user: GetUserDep) -> Response:
    """One pipeline: the tab of a DAG shows it as well."""
    view = read(partial(views.pipeline_view, pipeline=dag_id, chosen=chosen, declared=declared()))
    return page("pipeline.html", path_of(request), view=view, chosen=chosen, **act_routes.offered(dag_id, user))


@html.get("/pipelines/{dag_id}/epochs/{epoch_id}", dependencies=[Depends(may_read_dag)])
def one_epoch(request: Request, dag_id: str, epoch_id: int, user: GetUserDep) -> Response:
    """One epoch."""
    return _page_of_epoch(request, dag_id, read(partial(views.epoch_view, pipeline=dag_id, epoch_id=epoch_id)), user)


@html.get("/pipelines/{dag_id}/runs/{run_id}", dependencies=[Depends(may_read_dag)])
def epoch_of_one_run(request: Request, dag_id: str, run_id: str, user: GetUserDep) -> Response:
    """The epoch of a run, for the tab of the run."""

    def look(ledger: Snapshot) -> Any:
        epoch_id = views.epoch_of_run(ledger, dag_id, run_id)
        return None if epoch_id is None else views.epoch_view(ledger, dag_id, epoch_id)

    try:
        view = read(look)
    except HTTPException:
        return page("no_epoch.html", path_of(request), pipeline=dag_id, run_id=run_id)
    return _page_of_epoch(request, dag_id, view, user)


def _page_of_epoch(request: Request, dag_id: str, view: views.EpochView, user: Any) -> Response:
    may_act = edits(dag_id, user)
    return page("epoch.html", path_of(request), view=view, may_act=may_act, sample=_sample(view) if may_act else None)


@html.get("/static/{name}")
def static(name: str) -> Response:
    """The stylesheet and the script."""
    if name not in ("pages.css", "pages.js"):
        raise HTTPException(404, "There is no such file.")
    return FileResponse(_STATIC / name)


@html.get("/api")
def api_page(request: Request) -> Response:
    """The list of the JSON routes."""
    return page("api.html", path_of(request), paths=_openapi()["paths"])


@html.get("/api/openapi.json")
def openapi() -> JSONResponse:
    """The description of the JSON routes."""
    return JSONResponse(_openapi())


@json.get("/pipelines")
def pipelines_as_json(user: GetUserDep) -> dict[str, Any]:
    """All pipelines: state, lag, last commit, unfinished epoch, failures, epochs that sinks do not show yet."""
    return _encoded(views.as_json(_pipelines(user)))


@json.get("/pipelines/{dag_id}", dependencies=[Depends(may_read_dag)])
def pipeline_as_json(dag_id: str, chosen: Chosen) -> dict[str, Any]:
    """One pipeline. Its history has `size` epochs; the next page is asked for with `before` = `older`."""
    view = read(partial(views.pipeline_view, pipeline=dag_id, chosen=chosen, declared=declared()))
    return _encoded(views.as_json(view))


@json.get("/pipelines/{dag_id}/epochs/{epoch_id}", dependencies=[Depends(may_read_dag)])
def epoch_as_json(dag_id: str, epoch_id: int) -> dict[str, Any]:
    """One epoch: ranges with both balances, phases, attempts, receipts, places of quarantined records."""
    return _encoded(views.as_json(read(partial(views.epoch_view, pipeline=dag_id, epoch_id=epoch_id))))


@html.get("/pipelines/{dag_id}/quarantine", dependencies=[Depends(may_read_dag)])
def quarantined_records(request: Request, dag_id: str, chosen: Records, user: GetUserDep) -> Response:
    """The records that epochs of a pipeline set aside."""
    inspect = edits(dag_id, user)
    view = read(partial(quarantine.quarantine_view, pipeline=dag_id, chosen=chosen, inspect=inspect), inspect=inspect)
    return page("quarantine.html", path_of(request), view=view, chosen=chosen, may_act=inspect)


@html.get("/pipelines/{dag_id}/quarantine/record", dependencies=[Depends(may_read_dag), Depends(may_edit_dag)])
def one_record(request: Request, dag_id: str, place: Annotated[quarantine.Place, Query()]) -> Response:
    """One record: its place, reason, bytes and headers."""
    view = read(partial(quarantine.record_view, pipeline=dag_id, place=place), inspect=True)
    return page("record.html", path_of(request), view=view)


@html.get("/pipelines/{dag_id}/why", dependencies=[Depends(may_read_dag), Depends(may_edit_dag)])
def why_a_row(request: Request, dag_id: str, asked: Annotated[why.WhyQuery, Query()]) -> Response:
    """What made the rows of a key in a target."""
    return page("why.html", path_of(request), name=dag_id, asked=asked, view=why.why_view(dag_id, asked))


@json.get("/pipelines/{dag_id}/quarantine", dependencies=[Depends(may_read_dag)])
def quarantine_as_json(dag_id: str, chosen: Records) -> dict[str, Any]:
    """Places of quarantined records, without bytes and reasons. `after` of the next page is the last record's place."""
    view = read(partial(quarantine.quarantine_view, pipeline=dag_id, chosen=chosen, inspect=False))
    return _encoded({"records": view.records.rows, "after": view.after})


def _sample(view: views.EpochView) -> quarantine.QuarantineView | None:
    """The first quarantined records of an epoch with reason and value; None without any, or without the role."""
    row = view.epoch.rows[0]
    if not view.quarantined.rows:
        return None
    chosen = quarantine.QuarantineFilter(epoch=row["epoch_id"], size=views.SOME)
    records = partial(quarantine.records_view, pipeline=row["pipeline"], chosen=chosen, inspect=True)
    try:
        sample: quarantine.QuarantineView = read(records, inspect=True)
    except LedgerError:  # The page of the quarantine names the role that the login lacks.
        return None
    return sample


def _encoded(fields: dict[str, Any]) -> dict[str, Any]:
    encoded: dict[str, Any] = jsonable_encoder(fields)
    return encoded


def _openapi() -> dict[str, Any]:
    return get_openapi(title="Epochline's ledger", version="1", routes=json.routes, servers=[{"url": ".."}])


@html.get("/{path:path}")
def anything_else(path: str) -> Response:
    """Refuse an anonymous request of any path by 401, and answer every other one by 404."""
    raise HTTPException(404, "There is no such page.")


async def _with_headers(request: Request, answer: RequestResponseEndpoint) -> Response:
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, EpochlineError):
        status, message = 503, str(error)
    elif isinstance(error, StarletteHTTPException):
        status, message = error.status_code, str(error.detail)
    else:
        raise error
    path = path_of(request)
    if path.startswith("/api/"):
        return JSONResponse({"detail": message}, status_code=status)
    return page("refused.html", path, status=status, status_code=status, message=message)


def create_app() -> FastAPI:
    """The application. Every route demands a user of Airflow, or Prometheus' token.

    FastAPI's own pages are off, because they demand nothing.
    """
    app = FastAPI(
        title="Epochline", docs_url=None, redoc_url=None, openapi_url=None,
        exception_handlers={StarletteHTTPException: _refused, EpochlineError: _refused},
    )  # fmt: skip
    app.middleware("http")(_with_headers)
    app.include_router(scraping.text)
    for router in (json, act_routes.html, html):
        app.include_router(router, dependencies=[Depends(may_see_pages)])
    return app
