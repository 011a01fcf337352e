"""Savepoints, restores and other operations on the pipeline of a bench."""

from pathlib import Path
from typing import Any

from epochline import KafkaSource
from epochline.operations import Done, Request
from tests.integration.bench import Bench, NewBench, Row, kv

ORDER = Request(actor="ada", reason="the transform was wrong")
FIRST = [kv("a", 1), kv("b", 1), kv("d", 1, _partition=1)]


def act(it: Bench, what: str, **asked: Any) -> Done:
    return it.act(what, ORDER, **asked)


def with_savepoint(bench: NewBench, **sink: Any) -> Bench:
    """A pipeline with a savepoint `before` after its first epoch."""
    it = bench(**sink).after(FIRST)
    act(it, "savepoint", name="before")
    return it


def exported(it: Any, file: Path, name: str = "before") -> Path:
    """Write a savepoint into a new file."""
    with it.ledger.transaction() as tx, file.open("xb") as into:
        found = tx.savepoints.find(it.name, name)
        assert found is not None
        tx.savepoints.export(found, into)
    return file


def imported(there: Any, file: Path) -> None:
    with there.ledger.transaction() as tx, file.open("rb") as source:
        tx.savepoints.import_savepoint(source)


def begun_at_the_end(bench: NewBench, records: int) -> Bench:
    """A pipeline that began behind so many records of partition 0."""
    it = bench()
    it.pipeline = it.pipeline.model_copy(update={"source": KafkaSource(topics="orders", startup="latest")})
    it.kafka.produce("orders", 0, records)
    it.plan()
    return it


def again(it: Bench, *rows: Row) -> None:
    """An epoch over records that are in Kafka already."""
    it.commit_staged(it.plan(), *rows)


def extend_back(it: Bench, *values: str) -> list[str]:
    """Back to the earliest record, with one row for each value of `k`; the ranges that were read."""
    planned = it.order("extend-back", ORDER, "back to earliest", to="earliest")
    it.commit_staged(planned, *(kv(k, v) for v, k in enumerate(values)))
    return [str(planned_range) for planned_range in planned.ranges]
