"""Finds the common parts of several frames, so that they are computed once and all outputs agree.

Spark computes a frame again for each write. If a transform is not deterministic (``rand()``, a tie that
``dropDuplicates`` or ``row_number`` breaks by the order of rows), target and state would be made of different rows, and
no count would show it.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from epochline.errors import DeclarationError

Plan = Any
"""A logical plan: an object of Spark's JVM, or a client's plan for a Spark Connect server."""


def in_common(spark: SparkSession, frames: Iterable[DataFrame], given: Iterable[DataFrame]) -> list[DataFrame]:
    """Find the largest plans that occur more than once in frames to write, as frames to persist.

    Spark replaces any part of a later plan that equals a persisted plan. ``given`` are the inputs of the frames, which
    are persisted or read only persisted frames.

    Raises:
        DeclarationError: on a server, a frame's plan is another one each time it is sent.
    """
    kind: _Kind = _OnServer(spark) if is_remote() else _InDriver(spark)
    known = {kind.form(part) for frame in given for part in _parts(kind, kind.plan(frame))}
    plans = [kind.plan(frame) for frame in frames]
    times = Counter(kind.form(part) for plan in plans for part in _parts(kind, plan))
    found: dict[Hashable, Plan] = {}
    for plan in plans:
        for part in _largest(kind, plan, times, known):
            found.setdefault(kind.form(part), part)
    return [kind.frame(part) for part in found.values()]


class _InDriver:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def plan(self, frame: DataFrame) -> Plan:
        return frame._jdf.queryExecution().analyzed()

    def children(self, plan: Plan) -> Sequence[Plan]:
        children = plan.children()
        return [children.apply(at) for at in range(children.size())]

    def form(self, plan: Plan) -> Hashable:
        """A plan to compare with others: without the numbers of columns, which differ between equal plans."""
        return _Canonical(plan)

    def frame(self, plan: Plan) -> DataFrame:
        session = self._spark._jsparkSession
        jvm: Any = self._spark.sparkContext._jvm
        return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan), self._spark)


class _Canonical:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan.canonicalized()
        self._hash = int(self._plan.hashCode())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Canonical) and self._hash == other._hash and bool(self._plan.equals(other._plan))


class _OnServer:
    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        self._forms: dict[int, bytes] = {}

    def plan(self, frame: DataFrame) -> Plan:
        one: Any = frame
        if self.form(one._plan) != self._message(one._plan):
            raise DeclarationError(
                "a function of the transform is pickled differently each time, so a Spark server cannot tell what two"
                " outputs have in common. Remove what changes from the function, or give the pipeline a"
                " spark_connection of type spark"
            )
        return one._plan

    def children(self, plan: Plan) -> Sequence[Plan]:
        from pyspark.sql.connect.plan import LogicalPlan

        return [child for child in vars(plan).values() if isinstance(child, LogicalPlan)]

    def form(self, plan: Plan) -> Hashable:
        # Frames keep their plans, so no other plan gets the same id meanwhile.
        if id(plan) not in self._forms:
            self._forms[id(plan)] = self._message(plan)
        return self._forms[id(plan)]

    def _message(self, plan: Plan) -> bytes:
        sent = plan.plan(self._spark.client)
        _forget_numbers(sent)
        return bytes(sent.SerializeToString(deterministic=True))

    def frame(self, plan: Plan) -> DataFrame:
        from pyspark.sql.connect.dataframe import DataFrame as ServersFrame

        return ServersFrame(plan, self._spark)


_Kind = _InDriver | _OnServer


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


def _parts(kind: _Kind, plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in kind.children(plan):
        yield from _parts(kind, child)


def _largest(kind: _Kind, plan: Plan, times: Counter[Hashable], known: set[Hashable]) -> Iterator[Plan]:
    form = kind.form(plan)
    if form in known:
        return
    if times[form] > 1:
        yield plan
        return
    for child in kind.children(plan):
        yield from _largest(kind, child, times, known)
