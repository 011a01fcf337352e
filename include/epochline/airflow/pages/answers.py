"""How a route reads the ledger: with the reader's connection, in one moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import HTTPException, Request

from epochline.airflow.connections import adapters
from epochline.airflow.reading import Snapshot, snapshot
from epochline.errors import ConfigurationError

CONNECTION = "epochline_reader"
"""Airflow connection of the login that the pages read with. It is a member of the role ``epochline_reader``."""


def path_of(request: Request) -> str:
    """The path of a request within the pages."""
    root, whole = request.scope.get("root_path", ""), request.url.path
    return "/" + whole.removeprefix(root).removeprefix("/")


def dsn() -> str:
    """Where the pages read.

    Raises:
        ConfigurationError: Airflow has no such connection, or it names no host or database.
    """
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
        found = view(ledger)
    if found is None:
        raise HTTPException(
            404,
            "The ledger knows no such pipeline or epoch, and Airflow has no DAG of such a pipeline. A DAG that is no"
            " pipeline of Epochline has no page.",
        )
    return found
