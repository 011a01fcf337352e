"""What a request may see, by Airflow's own users and rights, and how it reads the ledger: in one moment.

A pipeline is seen by everybody who may read its DAG's runs.
"""

from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import requires_access_dag, requires_access_view
from airflow.models.asset import AssetAliasModel
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import HTTPException, Request
from sqlalchemy import select

from epochline.airflow.connections import adapters
from epochline.airflow.reading import Snapshot, snapshot
from epochline.declare.names import pipeline_uri
from epochline.errors import ConfigurationError

CONNECTION = "epochline_reader"
"""Airflow connection of the login that the pages read with. It is a member of the role ``epochline_reader``."""

may_see_pages = requires_access_view(AccessView.PLUGINS)
"""Refuses an anonymous request by 401, and a user who may not see what plugins show by 403."""

may_read_dag = requires_access_dag("GET", DagAccessEntity.RUN)
"""Refuses a user who may not read the runs of the DAG in the path, by 403."""

may_edit_dag = requires_access_dag("PUT", DagAccessEntity.RUN)
"""Refuses a user who may not edit the runs of the DAG in the path, by 403."""


def edits(dag_id: str, user: BaseUser) -> bool:
    """Whether the user may edit the runs of a DAG: act on the pipeline, and see the bytes in its quarantine."""
    return _may("PUT", dag_id, DagModel.get_team_name(dag_id), user)


def from_here(request: Request) -> None:
    """Refuse a form that was sent from another origin, by 403.

    A browser says by ``Sec-Fetch-Site`` whether page and target have one origin, and sends the header only to hosts
    that it trusts. Without the header, ``Origin`` has to name the host of the request.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    same = site == "same-origin" if site else urlsplit(origin or "").netloc == request.headers.get("host", "-")
    if not same:
        raise HTTPException(403, "The form was sent from another origin. Nothing was changed.")


def declared() -> set[str]:
    """The pipelines whose DAGs Airflow has. The DAG announces epochs by the asset alias of its pipeline."""
    with create_session() as session:
        scheme = pipeline_uri("")
        aliases = session.scalars(select(AssetAliasModel.name).where(AssetAliasModel.name.startswith(scheme)))
        names = [name.removeprefix(scheme) for name in aliases]
        return {*session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(names), ~DagModel.is_stale))}


def readable(pipelines: list[str], user: BaseUser) -> set[str]:
    """Those of the given pipelines whose DAG's runs the user may read. A pipeline's DAG has the pipeline's name."""
    teams = DagModel.get_dag_id_to_team_name_mapping(pipelines)
    return {name for name in pipelines if _may("GET", name, teams.get(name), user)}


def _may(method: Literal["GET", "PUT"], dag_id: str, team: str | None, user: BaseUser) -> bool:
    details = DagDetails(id=dag_id, team_name=team)
    manager = get_auth_manager()
    return manager.is_authorized_dag(method=method, access_entity=DagAccessEntity.RUN, details=details, user=user)


def path_of(request: Request) -> str:
    """The path of a request within the pages."""
    root, whole = request.scope.get("root_path", ""), request.url.path
    return "/" + whole.removeprefix(root).removeprefix("/")


def dsn() -> str:
    """Where the pages read."""
    try:
        return adapters().postgres_dsn(CONNECTION)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error} Its login is a member of the role epochline_reader, in the database of the ledger."
        ) from error


def read(view: Callable[[Snapshot], Any], *, inspect: bool = False) -> Any:
    """What a view finds in one moment of the ledger. A view that finds nothing is answered by 404.

    Args:
        view: reads.
        inspect: also the bytes and reasons of quarantined records; for a user who may edit the DAG's runs.
    """
    with snapshot(dsn(), inspect=inspect) as ledger:
        answer = view(ledger)
    if answer is None:
        raise HTTPException(
            404,
            "The ledger knows no such pipeline or epoch, and Airflow has no DAG of such a pipeline. A DAG that is no"
            " pipeline of Epochline has no page.",
        )
    return answer
