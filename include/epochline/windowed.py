"""A windowed aggregation as a declaration says it: windows, keys, what is summed up, and where results go. Pure."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Self

from pydantic import Field, field_validator, model_validator

from epochline.declared import Declared, check_identifier
from epochline.restart import Pause
from epochline.windows import Windows

START, END = "window_start", "window_end"
"""Columns of every result and of the state: ``timestamptz``, ``[window_start, window_end)``."""

_AGGREGATE = re.compile(r"^\s*(?:count\(\s*\*\s*\)|(?P<of>sum|min|max|count)\(\s*(?P<column>[^()]+?)\s*\))\s*$")


class Aggregate(Declared):
    """What is summed up: ``count(*)``, or ``sum``, ``min``, ``max`` or ``count`` of a column. Each can be merged."""

    function: str
    column: str | None = None

    @classmethod
    def read(cls, text: str) -> Aggregate:
        """Read it as SQL writes it; ``ValueError`` where it is something else."""
        found = _AGGREGATE.match(text)
        if found is None:
            raise ValueError(f"{text!r}: write count(*), or sum, min, max or count of a column, such as sum(money)")
        return cls(function=found["of"] or "count", column=found["column"])

    @property
    def merges_by(self) -> str:
        """How two partial results become one."""
        return "sum" if self.function == "count" else self.function


class Windowed(Declared):
    """Aggregates per key and window of event time, in place of a transform (E5, E11).

    The result table has the columns of the key, ``window_start``, ``window_end`` and one for each aggregate, and is
    an upsert target by key and ``window_start``: a late record gives the corrected row in place of the first (X21).

    Args:
        window: `Tumbling`, `Sliding` or `Session`.
        key: columns of the parsed record; none for one result per window.
        aggregates: by column of the result, ``count(*)`` or ``sum``, ``min``, ``max``, ``count`` of a record's column.
        into: the sink of the results.
        lateness: how long after its end a window takes late records.
        too_late: the sink of records that come later than that: every column of the record and its lineage. Without
            one they are only counted.
    """

    window: Windows
    key: tuple[str, ...] = ()
    aggregates: dict[str, str] = Field(min_length=1)
    into: str
    lateness: Pause = timedelta(0)
    too_late: str | None = None

    @field_validator("key", mode="before")
    @classmethod
    def _one_column_may_stand_alone(cls, key: object) -> object:
        return (key,) if isinstance(key, str) else key

    @field_validator("aggregates")
    @classmethod
    def _aggregates_can_be_read(cls, aggregates: dict[str, str]) -> dict[str, str]:
        for name, text in aggregates.items():
            check_identifier(name)
            Aggregate.read(text)
        return aggregates

    @model_validator(mode="after")
    def _columns_have_one_meaning(self) -> Self:
        names = [*self.key, START, END, *self.aggregates]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} would be two columns of the result; rename one")
        return self

    @property
    def read_aggregates(self) -> dict[str, Aggregate]:
        """By column of the result."""
        return {name: Aggregate.read(text) for name, text in self.aggregates.items()}
