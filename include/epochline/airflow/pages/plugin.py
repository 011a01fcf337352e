"""Where Airflow shows the pages. Addresses have no leading slash, so that a proxy may add a prefix.

Airflow loads plugins in every process, tasks included. So the application, which brings FastAPI and Airflow's API, is
made by its first request.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

PREFIX = "epochline"
PIPELINE_TAB, EPOCH_TAB = "epochline_pipeline", "epochline_epoch"


class Pages:
    """The application, made when it is first asked."""

    @cached_property
    def app(self) -> FastAPI:
        """The application."""
        from epochline.airflow.pages.app import create_app

        return create_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self.app(scope, receive, send)


APPS = [{"name": "Epochline", "app": Pages(), "url_prefix": f"/{PREFIX}"}]
VIEWS = [
    {"name": "Epochline", "destination": "nav", "category": "browse", "url_route": "epochline", "href": f"{PREFIX}/"},
    {"name": "Epochline", "destination": "dag", "url_route": PIPELINE_TAB, "href": f"{PREFIX}/pipelines/{{DAG_ID}}"},
    {
        "name": "Epoch",
        "destination": "dag_run",
        "url_route": EPOCH_TAB,
        "href": f"{PREFIX}/pipelines/{{DAG_ID}}/runs/{{RUN_ID}}",
    },
]
