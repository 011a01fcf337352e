"""Finds the common parts of several frames, so that they are computed once and all outputs agree.

Spark computes a frame again for each write. If a transform is not deterministic (``rand()``, a tie that
``dropDuplicates`` or ``row_number`` breaks by the order of rows), target and state would be made of different rows, and
no count would show it.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from epochline.errors import DeclarationError

Plan = Any
"""A logical plan: an object of Spark's JVM, or a client's plan for a Spark Connect server."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a plan. Equal plans have the same number as their ``form``."""

    plan: Plan
    form: int
    children: "Sequence[_Part]"

    def all(self) -> "Iterator[_Part]":
        yield self
        for child in self.children:
            yield from child.all()

    def largest(self, times: Mapping[int, int], excluded: set[int]) -> "Iterator[_Part]":
        """The largest parts that occur several times and are not excluded."""
        if self.form in excluded:
            return
        if times[self.form] > 1:
            yield self
            return
        for child in self.children:
            yield from child.largest(times, excluded)


def in_common(spark: SparkSession, frames: Iterable[DataFrame], given: Iterable[DataFrame]) -> list[DataFrame]:
    """Find the largest plans that occur more than once in frames to write, as frames to persist.

    Spark replaces any part of a later plan that equals a persisted plan. ``given`` are the inputs of the frames, which
    are persisted or read only persisted frames.

    Raises `DeclarationError` if, on a server, a frame's plan is another one each time it is sent.
    """
    kind = _OnServer(spark) if is_remote() else _InDriver(spark)
    forms: dict[Hashable, int] = {}

    def part(plan: Plan) -> _Part:
        form = forms.setdefault(kind.form(plan), len(forms))
        return _Part(plan, form, [part(child) for child in kind.children(plan)])

    input_forms = {shared.form for frame in given for shared in part(kind.plan(frame)).all()}
    whole = [part(kind.plan(frame)) for frame in frames]
    times = Counter(shared.form for plan in whole for shared in plan.all())
    common: dict[int, Plan] = {}
    for plan in whole:
        for shared in plan.largest(times, input_forms):
            common.setdefault(shared.form, shared.plan)
    return [kind.frame(plan) for plan in common.values()]


class _InDriver:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def plan(self, frame: DataFrame) -> Plan:
        return frame._jdf.queryExecution().analyzed()

    def children(self, plan: Plan) -> Sequence[Plan]:
        children = plan.children()
        return [children.apply(at) for at in range(children.size())]

    def form(self, plan: Plan) -> Hashable:
        # Without the numbers of columns, which differ between equal plans. The JVM hashes and compares it.
        canonical: Hashable = plan.canonicalized()
        return canonical

    def frame(self, plan: Plan) -> DataFrame:
        session = self._spark._jsparkSession
        jvm: Any = self._spark.sparkContext._jvm
        return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan), self._spark)


class _OnServer:
    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark

    def plan(self, frame: DataFrame) -> Plan:
        plan: Plan = cast("Any", frame)._plan
        sent, sent_again = self.form(plan), self.form(plan)
        if sent != sent_again:
            raise DeclarationError(
                "a function of the transform is pickled differently each time, so a Spark server cannot tell what two"
                " outputs have in common. Remove what changes from the function, or give the pipeline a"
                " spark_connection of type spark"
            )
        return plan

    def children(self, plan: Plan) -> Sequence[Plan]:
        from pyspark.sql.connect.plan import LogicalPlan

        return [child for child in vars(plan).values() if isinstance(child, LogicalPlan)]

    def form(self, plan: Plan) -> Hashable:
        sent = plan.plan(self._spark.client)
        _forget_numbers(sent)
        return bytes(sent.SerializeToString(deterministic=True))

    def frame(self, plan: Plan) -> DataFrame:
        from pyspark.sql.connect.dataframe import DataFrame as ServersFrame

        return ServersFrame(plan, self._spark)


def _forget_numbers(message: Any) -> None:
    """Clear the number of each plan in a message, and every reference to one."""
    for field, value in message.ListFields():
        if field.name == "plan_id":
            message.ClearField("plan_id")
        elif field.type == field.TYPE_MESSAGE:
            repeated = isinstance(value, Iterable)
            for part in value.values() if isinstance(value, Mapping) else value if repeated else [value]:
                if hasattr(part, "ListFields"):
                    _forget_numbers(part)
