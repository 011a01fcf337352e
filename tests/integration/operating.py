"""Savepoints, restores and other operations on the pipeline of a bench."""

from __future__ import annotations

from typing import Any

from epochline import Pipeline
from epochline.coordinator import Plan, seal
from epochline.operations import ACTIONS, DirectAction, Done, EpochAction, Request, Subject
from tests.contract.worlds import run
from tests.integration.bench import Bench, NewBench, Row

ORDER = Request(actor="ada", reason="the transform was wrong")
FIRST: list[Row] = [{"k": "a", "v": 1}, {"k": "b", "v": 1}, {"k": "d", "v": 1, "_partition": 1}]


def subject_of(it: Bench, declared: Pipeline | None = None) -> Subject:
    declared = declared or it.pipeline
    return Subject(name=declared.name, ledger=it.ledger, declared=declared, source=it.kafka)


def act(it: Bench, what: str, *, declared: Pipeline | None = None, **asked: Any) -> Done:
    action = ACTIONS[what]
    assert isinstance(action, DirectAction)
    return action.act(subject_of(it, declared), action.parse(asked), ORDER)


def with_savepoint(bench: NewBench, **sink: Any) -> Bench:
    """A pipeline with a savepoint `before` after its first epoch."""
    it = bench(**sink)
    it.epoch(*FIRST)
    act(it, "savepoint", name="before")
    return it


def again(it: Bench, *rows: Row) -> None:
    """An epoch over records that are in Kafka already."""
    commit(it, it.plan(), *rows)


def commit(it: Bench, planned: Plan, *rows: Row) -> None:
    assert planned.epoch is not None
    seal(it.ledger, it.kafka, it.stage(planned, *rows), planned.epoch.run)
    it.commit(planned)


def extend_back(it: Bench, *values: str) -> list[str]:
    """Back to the earliest record, with one row for each value of `k`; the ranges that were read."""
    back = ACTIONS["extend-back"]
    assert isinstance(back, EpochAction)
    planned = back.plan(subject_of(it), back.parse({"to": "earliest"}), ORDER, run("back to earliest"))
    commit(it, planned, *({"k": k, "v": v} for v, k in enumerate(values)))
    return [str(one) for one in planned.ranges]
