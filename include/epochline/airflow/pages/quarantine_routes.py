"""Routes of the quarantine: places for everybody who reads the pipeline, bytes and reasons for those who may act."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.encoders import jsonable_encoder

from epochline.airflow.pages.access import GetUserDep, edits, may_edit_dag, may_read_dag
from epochline.airflow.pages.answers import path_of, read
from epochline.airflow.pages.quarantine import (
    Place,
    QuarantineFilter,
    QuarantineView,
    quarantine_view,
    record_view,
    records_view,
)
from epochline.airflow.pages.rendering import page
from epochline.airflow.pages.views import SOME, EpochView
from epochline.errors import LedgerError

html = APIRouter(include_in_schema=False)
json = APIRouter(prefix="/api", tags=["ledger"])
Chosen = Annotated[QuarantineFilter, Query()]


def sample(view: EpochView) -> QuarantineView | None:
    """The first quarantined records of an epoch with reason and value; None without any, or without the role."""
    row = view.epoch.rows[0]
    if not view.quarantined.rows:
        return None
    chosen = QuarantineFilter(epoch=row["epoch_id"], size=SOME)
    seen = partial(records_view, pipeline=row["pipeline"], chosen=chosen, inspect=True)
    try:
        found: QuarantineView = read(seen, inspect=True)
    except LedgerError:  # The page of the quarantine names the role that the login lacks.
        return None
    return found


@html.get("/pipelines/{dag_id}/quarantine", dependencies=[Depends(may_read_dag)])
def quarantine(request: Request, dag_id: str, chosen: Chosen, user: GetUserDep) -> Response:
    """The records that epochs of a pipeline set aside."""
    inspect = edits(dag_id, user)
    view = read(partial(quarantine_view, pipeline=dag_id, chosen=chosen, inspect=inspect), inspect=inspect)
    return page("quarantine.html", path_of(request), view=view, chosen=chosen, may_act=inspect)


@html.get("/pipelines/{dag_id}/quarantine/record", dependencies=[Depends(may_read_dag), Depends(may_edit_dag)])
def one_record(request: Request, dag_id: str, place: Annotated[Place, Query()]) -> Response:
    """One record: its place, reason, bytes and headers."""
    view = read(partial(record_view, pipeline=dag_id, place=place), inspect=True)
    return page("record.html", path_of(request), view=view)


@json.get("/pipelines/{dag_id}/quarantine", dependencies=[Depends(may_read_dag)])
def quarantine_as_json(dag_id: str, chosen: Chosen) -> dict[str, Any]:
    """Places of quarantined records, without bytes and reasons. `after` of the next page is the last record's place."""
    view = read(partial(quarantine_view, pipeline=dag_id, chosen=chosen, inspect=False))
    encoded: dict[str, Any] = jsonable_encoder({"records": view.records.rows, "after": view.after})
    return encoded
