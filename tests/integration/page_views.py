"""The pages in Airflow as a reader's login makes them: their values, and their HTML."""

from collections.abc import Callable, Collection
from typing import Any

from epochline.airflow.pages.rendering import page
from epochline.airflow.pages.views import (
    EpochView,
    HistoryFilter,
    PipelinesView,
    PipelineView,
    epoch_view,
    pipeline_view,
    pipelines_view,
)
from epochline.airflow.reading import snapshot


def pipelines(dsn: str, seen: Callable[[list[str]], set[str]] = set, declared: Collection[str] = ()) -> PipelinesView:
    with snapshot(dsn) as ledger:
        return pipelines_view(ledger, seen, declared)


def pipeline(dsn: str, name: str = "orders", **chosen: Any) -> PipelineView:
    with snapshot(dsn) as ledger:
        view = pipeline_view(ledger, name, HistoryFilter(**chosen))
    assert view is not None
    return view


def epoch(dsn: str, epoch_id: int) -> EpochView:
    with snapshot(dsn) as ledger:
        view = epoch_view(ledger, "orders", epoch_id)
    assert view is not None
    return view


def html(template: str, path: str, **values: Any) -> str:
    return bytes(page(template, path, **values).body).decode()


def pages(dsn: str, epoch_id: int = 1) -> dict[str, str]:
    """Every page as HTML."""
    chosen = HistoryFilter()
    return {
        "pipelines": html("pipelines.html", "/", view=pipelines(dsn)),
        "pipeline": html("pipeline.html", "/pipelines/orders", view=pipeline(dsn), chosen=chosen),
        "epoch": html("epoch.html", f"/pipelines/orders/epochs/{epoch_id}", view=epoch(dsn, epoch_id)),
    }
