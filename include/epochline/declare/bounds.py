"""Bounds: what the numbers of an epoch may be, for the epoch to become visible without a person."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from epochline.declare.base import DeclarationModel, repeated
from epochline.declare.table import PostgresTable

Share = Annotated[Decimal, Field(ge=0, le=1)]
"""A part of a whole, from 0 to 1."""

_STAGED = re.compile(r"\bstaged\b", re.IGNORECASE)


class Measure(DeclarationModel):
    """A number, or a condition, that SQL gives of an epoch's staged rows.

    The query gives one row with one column. A number is inside from ``least`` to ``most``, and within ``change``; true
    is inside; NULL, NaN and false are outside. A query that fails, takes too long or gives anything else refuses the
    epoch.

    Args:
        name: its name in messages and in the ledger.
        sql: a query that only reads, and sees no other table of yours than ``staged``.
        table: the target of ``staged``; needed if the pipeline has several.
        least, most: limits of the number.
        change: most difference from the median of earlier epochs, as a part of it: 0.5 for half.
        epochs: how many of the newest committed epochs count. A measure whose ``sql`` or ``table`` changes starts over.
        first: what an epoch without an earlier one is.
    """

    name: str = Field(min_length=1, max_length=100)
    sql: str
    table: str | None = None
    least: Decimal | None = None
    most: Decimal | None = None
    change: Decimal | None = Field(default=None, ge=0)
    epochs: int = Field(default=10, ge=1, le=1000)
    first: Literal["outside", "inside"] = "outside"

    @field_validator("name")
    @classmethod
    def _name_is_one_line(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("a name must be one line of characters that print")
        return name

    @field_validator("sql")
    @classmethod
    def _reads_what_is_staged(cls, text: str) -> str:
        if not _STAGED.search(text) or "\0" in text:
            raise ValueError("name the staged rows, as in SELECT count(*) FROM staged")
        return text

    @model_validator(mode="after")
    def _limits_leave_room(self) -> Self:
        _refuse_empty(self.least, self.most, "least", "most")
        return self

    @property
    def key(self) -> str:
        """By which the ledger keeps the number: the name, and what it is a measure of."""
        asked = f"{self.table or ''}\0{self.sql}"
        return f"{self.name} {hashlib.sha256(asked.encode()).hexdigest()[:8]}"

    def __str__(self) -> str:
        return self.name


class Bounds(DeclarationModel):
    """What an epoch's numbers may be. An epoch inside commits by itself; one outside waits for a person, or is aborted.

    A requeue, and an epoch that only closes windows, may be smaller than ``least_rows`` and is compared with no earlier
    epoch. A replay is not judged: who promotes it decides.

    Args:
        least_rows, most_rows: rows staged for all sinks together.
        most_quarantined, most_skipped: parts of the records read, from 0 to 1.
        most_overwritten: part of an epoch's keys that are in the table already, for each ``upsert`` target.
        measures: by SQL over the staged rows.
        outside: whether an epoch outside shall ``wait`` for an approval, or ``abort``.
        statement_timeout: most time that each query may take.
    """

    least_rows: int | None = Field(default=None, ge=0)
    most_rows: int | None = Field(default=None, ge=0)
    most_quarantined: Share | None = None
    most_skipped: Share | None = None
    most_overwritten: Share | None = None
    measures: tuple[Measure, ...] = ()
    outside: Literal["wait", "abort"] = "wait"
    statement_timeout: timedelta = Field(default=timedelta(minutes=1), gt=timedelta(0), le=timedelta(hours=1))

    @model_validator(mode="after")
    def _say_something(self) -> Self:
        shares = (self.most_quarantined, self.most_skipped, self.most_overwritten)
        if not self.measures and all(bound is None for bound in (self.least_rows, self.most_rows, *shares)):
            raise ValueError("name at least one bound, or leave bounds out")
        _refuse_empty(self.least_rows, self.most_rows, "least_rows", "most_rows")
        for name in repeated(measure.name for measure in self.measures):
            raise ValueError(f"measures: two have the name {name!r}")
        for measure in self.measures:
            if self.outside == "abort" and measure.change is not None and measure.first == "outside":
                raise ValueError(
                    f"measures.{measure}.first: no first epoch could ever commit; set first='inside', or outside='wait'"
                )
        return self

    def check(self, targets: Sequence[PostgresTable]) -> None:
        """Raise ``ValueError`` if the targets have not what the bounds are about."""
        if self.most_overwritten is not None and not any(target.mode == "upsert" for target in targets):
            raise ValueError("bounds.most_overwritten: no target has mode 'upsert'; remove it")
        names = [target.table for target in targets]
        for measure in self.measures:
            if measure.table is None and len(names) != 1:
                raise ValueError(f"bounds.measures.{measure}.table: name one of {', '.join(names) or 'no table'}")
            if measure.table is not None and measure.table not in names:
                raise ValueError(f"bounds.measures.{measure}.table: {measure.table!r} is no target of the pipeline")


def _refuse_empty(least: Decimal | int | None, most: Decimal | int | None, lower: str, upper: str) -> None:
    if least is not None and most is not None and least > most:
        raise ValueError(f"{lower}: is above {upper}, so that no epoch is inside")
