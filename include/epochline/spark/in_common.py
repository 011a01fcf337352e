"""Finds the common parts of several frames, so that they are computed once and all outputs agree.

Spark computes a frame again for each write. If a transform is not deterministic (``rand()``, a tie that
``dropDuplicates`` or ``row_number`` breaks by the order of rows), target and state would be made of different rows, and
no count would show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

Plan = Any
"""A logical plan in Spark's JVM."""


def in_common(spark: SparkSession, frames: Iterable[DataFrame], given: Iterable[DataFrame]) -> list[DataFrame]:
    """Find the largest plans that occur more than once in some frames, as frames to persist.

    Spark replaces any part of a later plan that equals a persisted plan.

    Args:
        spark: the session of all frames.
        frames: the frames to write.
        given: the inputs of these frames, which are persisted or read only persisted frames.
    """
    known = {_Form(part) for frame in given for part in _parts(_plan(frame))}
    plans = [_plan(frame) for frame in frames]
    times = Counter(_Form(part) for plan in plans for part in _parts(plan))
    found: dict[_Form, Plan] = {}
    for plan in plans:
        for part in _largest(plan, times, known):
            found.setdefault(_Form(part), part)
    return [_frame(spark, part) for part in found.values()]


class _Form:
    """A plan to compare with others: without the numbers of columns, which differ between equal plans."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan.canonicalized()
        self._hash = int(self._plan.hashCode())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self._hash == other._hash and bool(self._plan.equals(other._plan))


def _plan(frame: DataFrame) -> Plan:
    return frame._jdf.queryExecution().analyzed()


def _frame(spark: SparkSession, plan: Plan) -> DataFrame:
    session = spark._jsparkSession
    jvm: Any = spark.sparkContext._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan), spark)


def _children(plan: Plan) -> Sequence[Plan]:
    children = plan.children()
    return [children.apply(at) for at in range(children.size())]


def _parts(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in _children(plan):
        yield from _parts(child)


def _largest(plan: Plan, times: Counter[_Form], known: set[_Form]) -> Iterator[Plan]:
    form = _Form(plan)
    if form in known:
        return
    if times[form] > 1:
        yield plan
        return
    for child in _children(plan):
        yield from _largest(child, times, known)
