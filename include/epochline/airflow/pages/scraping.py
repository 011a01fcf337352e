"""The page that Prometheus scrapes, and who may: a program with the token of a file, or a user of Airflow.

The token comes in the header ``Authorization`` alone, so no log of requests holds it.
"""

import hmac
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.security import HTTPAuthorizationCredentials

from epochline.airflow.pages.access import dsn, may_see_pages, readable

log = logging.getLogger(__name__)

TOKEN_FILE = "EPOCHLINE_METRICS_TOKEN_FILE"  # noqa: S105 - the name of a variable
"""Names the file with the token. It is read at each request, so that a token can be replaced."""

text = APIRouter(include_in_schema=False)


async def _scraper(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer_scheme)]
) -> BaseUser | None:
    """The user of Airflow that a request comes from; None for one with the token. Anybody else is refused."""
    if bearer is not None and _is_token(bearer.credentials):
        return None
    return await get_user(request, None, bearer)


def _is_token(given: str) -> bool:
    path = os.environ.get(TOKEN_FILE)
    if not path:
        return False
    try:
        token = Path(path).read_bytes().strip()
    except OSError as error:
        log.warning("%s names %s, which cannot be read: %s", TOKEN_FILE, path, type(error).__name__)
        return False
    return bool(token) and hmac.compare_digest(given.encode(), token)


def _seen_by(request: Request, user: Annotated[BaseUser | None, Depends(_scraper)]) -> Callable[[list[str]], set[str]]:
    """Which pipelines a request may see: all with the token, those that the user may see otherwise."""
    if user is None:
        return set
    may_see_pages(request, user)
    return partial(readable, user=user)


@text.get("/metrics")
def metrics(request: Request, seen: Annotated[Callable[[list[str]], set[str]], Depends(_seen_by)]) -> Response:
    """Every pipeline that the request may see, as OpenMetrics or as Prometheus' own text, whichever it asks for."""
    try:
        from prometheus_client.exposition import choose_encoder

        from epochline.airflow.pages.metrics import Scrape
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        told = f"{name} is not installed here. Run `pip install 'epochline[airflow]'`, then restart Airflow."
        raise HTTPException(503, told) from None
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(Scrape(dsn, seen)), headers={"Content-Type": content_type})
