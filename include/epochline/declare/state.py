"""Keyed state of a pipeline: its declaration, and the check that only epochs changed it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import model_validator

from epochline.declare.base import Reference
from epochline.declare.columns import parse_type
from epochline.declare.table import PostgresTable
from epochline.errors import StateError


class StateTable(PostgresTable):
    """Rows by key that a transform reads for the keys of an epoch's records and returns changed.

    ``epochline migrate`` creates the table. ``_epoch`` is the epoch that last changed a row. Only epochs may change
    the table, or the pipeline stops.

    Args:
        table: ``table`` (in ``public``) or ``schema.table``.
        key: columns of the key.
        columns: names and PostgreSQL types of all columns, including the key.
        keys: ``module:function`` from the parsed DataFrame to a DataFrame with the columns of the key; by default they
            are taken from the records by name.
    """

    mode: Literal["upsert"] = "upsert"
    lineage: Literal[True] = True
    aggregated: Literal[True] = True
    keys: Reference | None = None

    @model_validator(mode="after")
    def _is_only_state(self) -> Self:
        if self.columns is None:
            raise ValueError("columns: a state table needs its columns declared")
        for field in ("order_by", "tombstone", "select", "before_images", "insert_time"):
            if getattr(self, field):
                raise ValueError(f"{field}: not supported for state; remove it")
        for name, kind in self.columns.items():
            if kind in ("json", "json[]"):
                raise ValueError(f"columns: {name} is {kind}, whose values PostgreSQL cannot compare; use jsonb")
            if parse_type(kind).by_text or (name in self.key and parse_type(kind).element):
                raise ValueError(f"columns: {name} is {kind}, which is not supported for state; use text")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDigest:
    """Content of a state table: the number of keys, and the sum of a digest over its rows."""

    keys: int
    digest: int

    def __str__(self) -> str:
        return "1 key" if self.keys == 1 else f"{self.keys} keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStanding:
    """Content of one state table now and after its last epoch."""

    now: StateDigest | None
    """None if no trigger counts it."""
    followed: bool = True
    """Whether Epochline created the table, so that its triggers can be mended."""
    left: StateDigest | None = None
    """Content after the last epoch that was committed with the table, ``left_by``, or None."""
    left_by: int | None = None

    @property
    def difference(self) -> str | None:
        """How the content differs from what the last epoch left, for people; None if it does not."""
        if self.left is None or self.now is None or self.now == self.left:
            return None
        same = self.now.keys == self.left.keys
        held = "the same number of keys with other values" if same else str(self.now)
        return f"epoch {self.left_by} left {self.left}, it now holds {held}"

    def as_left(self) -> StateStanding:
        """The standing of an unchanged table."""
        return replace(self, now=self.left)


def check_state(pipeline: str, standings: Mapping[str, StateStanding], last_committed: int | None) -> None:
    """Raise `StateError` if a state table is not as the last epoch left it: edited, replaced or restored."""
    for table, standing in standings.items():
        what = f"{pipeline}: state {table}"
        accept = f"accept-state {pipeline} --reason …"
        if standing.now is None:
            raise not_counted(pipeline, table, followed=standing.followed)
        if standing.left is None:
            if standing.now.keys:
                raise StateError(
                    f"{what} holds {standing.now}, though no epoch has written any. Nothing was changed. Empty it"
                    + ("." if last_committed is None else ", or accept it as it is."),
                    f"run {pipeline}" if last_committed is None else accept,
                )
            continue
        if standing.difference is not None:
            raise StateError(
                f"{what} was changed outside of epochs: {standing.difference}. Nothing was changed. Put it back, or"
                " accept it as it is.",
                accept,
            )
        if standing.left_by != last_committed:
            raise StateError(
                f"{what} is of epoch {standing.left_by}, but the last committed epoch is {last_committed}: it lacks the"
                " records committed since. Nothing was changed. Restore it, or accept it as it is.",
                accept,
            )


def not_counted(pipeline: str, table: str, *, followed: bool) -> StateError:
    """The error for a state table whose writes no trigger counts."""
    if followed:
        return StateError(
            f"{pipeline}: triggers of state {table} are missing or disabled, so that what writes to it is not counted."
            " Nothing was changed. The command enables them; the next epoch then compares all of the table.",
            "migrate",
        )
    return StateError(
        f"{pipeline}: state {table} is a table that Epochline did not create, so its rows were never counted. Nothing"
        " was changed. Rename it. Copy its rows into the table that the command makes.",
        "migrate",
    )


def recorded_state(standings: Mapping[str, StateStanding]) -> dict[str, Any]:
    """Content of the state tables as JSON, as an action on state records it."""
    return {
        table: standing.now and {"keys": standing.now.keys, "digest": str(standing.now.digest)}
        for table, standing in standings.items()
    }
