"""What each page holds. HTML and JSON are made from the same values."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from fastapi import Query
from pydantic import BaseModel, ConfigDict, field_validator

from epochline.airflow.outcome import EpochOutcome
from epochline.airflow.reading import Snapshot, Table
from epochline.protocol.standing import Standing, Tone, standing_of_epoch, standing_of_pipeline

SUMMARY_EPOCHS = 500
"""The summary of a pipeline covers so many committed epochs, the newest ones."""

MOST_COUNTED = 10_000
"""Epochs of one state are counted up to this number, so that a page is as quick after a million of them."""

FLOW_EPOCHS = 60
"""The rates and lines of a pipeline cover so many committed epochs, the newest ones."""

PARTITION_EPOCHS = 20
"""The line of a partition covers so many committed epochs, the newest ones."""

SOME = 20
_MANY = 1000


class PageFilter(BaseModel):
    """The conditions of a list, from a query. An unknown condition is refused. An empty one does not count."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_no_condition(cls, value: object) -> object:
        return None if value == "" else value


class HistoryFilter(PageFilter):
    """Which epochs a page of the history shows: those before an epoch, of a state, of a kind, of a time."""

    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None
    state: Literal["PLANNED", "PRE_COMMITTED", "COMMITTED", "RECOVERED", "ABORTED"] | None = None
    """RECOVERED: committed epochs of which an attempt had failed."""
    kind: Literal["regular", "backfill", "requeue", "extend_back", "idle", "restore", "replay"] | None = None
    since: datetime | None = None
    until: datetime | None = None
    size: Annotated[int, Query(ge=1, le=200)] = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinesView:
    """All pipelines that the user may see, with their states in the same order."""

    pipelines: Table
    standings: list[Standing]
    day: Table

    @property
    def tally(self) -> list[tuple[Standing, int]]:
        """One standing of each state, the most urgent first, and the number of pipelines in it."""
        standings = {standing.state: standing for standing in self.standings}
        counts = Counter(standing.state for standing in self.standings)
        return [(standings[state], count) for state, count in counts.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """One pipeline. ``older`` is the epoch before which the next page of the history begins; None on the last page."""

    pipeline: Table
    standing: Standing
    day: Table
    states: Table
    history: Table
    older: int | None
    summary: Table
    flow: Table
    partitions: Table
    sinks: Table
    state_tables: Table
    settings: Table
    actions: Table
    savepoints: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochView:
    """One epoch; ``outcome`` is the line that its run shows in XCom."""

    epoch: Table
    outcome: str
    standing: Standing
    ranges: Table
    phases: Table
    attempts: Table
    staged: Table
    receipts: Table
    quarantined: Table
    actions: Table


def pipelines_view(
    ledger: Snapshot, may_see: Callable[[list[str]], set[str]], declared: Collection[str] = ()
) -> PipelinesView:
    """All pipelines that the user may see, the most urgent first.

    Declared pipelines have a row even if the ledger does not know them.
    """
    pipelines, day = ledger.ask("page_pipelines", pipeline=None), ledger.ask("page_day", pipeline=None)
    rows = pipelines.rows + _not_started(pipelines, declared)
    visible = may_see([row["pipeline"] for row in rows])
    judged = [(standing_of_pipeline(row), row) for row in rows if row["pipeline"] in visible]
    judged.sort(key=lambda pair: get_args(Tone).index(pair[0].tone))
    return PipelinesView(
        pipelines=replace(pipelines, rows=[row for _, row in judged]),
        standings=[standing for standing, _ in judged],
        day=replace(day, rows=[row for row in day.rows if row["pipeline"] in visible]),
    )


def _not_started(pipelines: Table, declared: Collection[str]) -> list[dict[str, Any]]:
    """Rows of declared pipelines that the ledger does not know, like those of the statement ``page_pipelines``."""
    unknown = sorted({*declared} - {row["pipeline"] for row in pipelines.rows})
    nothing = dict.fromkeys(pipelines.columns) | {"failures": 0, "aborts": 0, "savepoints": 0, "data_lost": False}
    return [nothing | {"pipeline": name} for name in unknown]


def pipeline_view(
    ledger: Snapshot, pipeline: str, chosen: HistoryFilter, declared: Collection[str] = ()
) -> PipelineView | None:
    """One pipeline with a page of its history; None if neither the ledger knows it nor it is declared."""
    pipelines = ledger.ask("page_pipelines", pipeline=pipeline)
    pipelines = replace(pipelines, rows=pipelines.rows or _not_started(pipelines, {pipeline} & {*declared}))
    if not pipelines.rows:
        return None
    history = ledger.ask(
        "page_history", pipeline=pipeline, limit=chosen.size + 1, **chosen.model_dump(exclude={"size"})
    )
    page = history.rows[: chosen.size]
    return PipelineView(
        pipeline=pipelines,
        standing=standing_of_pipeline(pipelines.rows[0]),
        day=ledger.ask("page_day", pipeline=pipeline),
        states=ledger.ask("page_states", pipeline=pipeline, limit=MOST_COUNTED),
        history=replace(history, rows=page),
        older=page[-1]["epoch_id"] if len(history.rows) > len(page) else None,
        summary=ledger.ask("page_summary", pipeline=pipeline, limit=SUMMARY_EPOCHS),
        flow=ledger.ask("page_flow", pipeline=pipeline, epochs=FLOW_EPOCHS),
        partitions=ledger.ask("page_partitions", pipeline=pipeline, epochs=PARTITION_EPOCHS),
        sinks=ledger.ask("page_sinks", pipeline=pipeline),
        state_tables=ledger.ask("page_state_tables", pipeline=pipeline),
        settings=ledger.ask("page_settings", pipeline=pipeline),
        actions=ledger.ask("page_actions", pipeline=pipeline, epoch_id=None, limit=SOME),
        savepoints=ledger.ask("page_savepoints", pipeline=pipeline, limit=SOME),
    )


def epoch_view(ledger: Snapshot, pipeline: str, epoch_id: int) -> EpochView | None:
    """One epoch; None if the ledger does not know it."""
    of_epoch: dict[str, Any] = {"pipeline": pipeline, "epoch_id": epoch_id}
    epochs = ledger.ask("page_epoch", **of_epoch)
    if not epochs.rows:
        return None
    return EpochView(
        epoch=epochs,
        outcome=str(EpochOutcome.of_row(epochs.rows[0])),
        standing=standing_of_epoch(epochs.rows[0]),
        ranges=ledger.ask("page_ranges", **of_epoch, limit=_MANY),
        phases=ledger.ask("page_phases", **of_epoch),
        attempts=ledger.ask("page_attempts", **of_epoch, limit=_MANY),
        staged=ledger.ask("page_staged", **of_epoch),
        receipts=ledger.ask("page_receipts", **of_epoch),
        quarantined=ledger.ask("page_quarantined", **of_epoch, limit=SOME),
        actions=ledger.ask("page_actions", **of_epoch, limit=SOME),
    )


def epoch_of_run(ledger: Snapshot, dag_id: str, run_id: str) -> int | None:
    """The newest epoch of a run of a pipeline's own DAG; None if the run has none."""
    rows = ledger.ask("page_epoch_of_run", pipeline=dag_id, dag_id=dag_id, run_id=run_id).rows
    return int(rows[0]["epoch_id"]) if rows else None


def as_json(view: PipelinesView | PipelineView | EpochView) -> dict[str, Any]:
    """The fields of a view for programs: tables as lists of rows, standings as objects."""
    return {
        name: value.rows if isinstance(value, Table) else value
        for name in view.__dataclass_fields__
        for value in (getattr(view, name),)
    }
