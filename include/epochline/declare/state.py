"""Keyed state of a pipeline: what a declaration says of it, and what must hold between it and the epochs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from epochline.declare.base import check_reference
from epochline.declare.table import PostgresTable
from epochline.errors import StateError


class StateTable(PostgresTable):
    """Rows by key that a transform is given for the keys of an epoch's records, and gives back changed (C1, C8, C9).

    A table like any other: made by ``epochline migrate``, staged, sealed and committed with the epoch, and to be
    looked at with SQL. ``_epoch`` is the epoch that last changed a row. Nobody else may change it: each epoch leaves
    the number of keys and a digest in the ledger, and finds them again, or the pipeline stops.

    Args:
        table: ``table`` (in ``public``) or ``schema.table``.
        key: columns of the key.
        columns: names and PostgreSQL types of all columns, those of the key included.
        keys: ``module:function`` from the parsed DataFrame to one with the columns of the key; by default they are
            taken from the records by name.
    """

    mode: Literal["upsert"] = "upsert"
    lineage: Literal[True] = True
    aggregated: Literal[True] = True
    keys: str | None = None

    @field_validator("keys")
    @classmethod
    def _keys_exists(cls, keys: str | None) -> str | None:
        return None if keys is None else check_reference(keys)

    @model_validator(mode="after")
    def _is_only_state(self) -> Self:
        if self.columns is None:
            raise ValueError("columns: state has no columns but those that are declared")
        for field in ("order_by", "tombstone", "select", "before_images"):
            if getattr(self, field):
                raise ValueError(f"{field}: state has no use for it; take it out")
        for name, kind in self.columns.items():
            if kind == "json":
                raise ValueError(f"columns: PostgreSQL cannot tell whether {name} changed, of type json; use jsonb")
        return self

    def __str__(self) -> str:
        return self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDigest:
    """What a state table holds: how many keys, and the sum of a digest over its rows."""

    keys: int
    digest: int

    def __str__(self) -> str:
        return "1 key" if self.keys == 1 else f"{self.keys} keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStanding:
    """One state table as it is, and as the last epoch left it.

    Args:
        now: what the table holds; None where the ledger does not follow the table.
        left: what the last committed epoch left, None if none has.
        left_by: that epoch's id.
    """

    now: StateDigest | None
    left: StateDigest | None = None
    left_by: int | None = None

    def as_left(self) -> StateStanding:
        """The standing if nobody had changed the table since."""
        return replace(self, now=self.left)


def check_state(pipeline: str, standings: Mapping[str, StateStanding], last_committed: int | None) -> None:
    """Refuse to go on with state that is not what the last epoch left (S14).

    Args:
        pipeline: its name.
        standings: by state table.
        last_committed: id of the pipeline's last committed epoch, None if there is none.

    Raises:
        StateError: a table was edited, replaced or brought back from another time.
    """
    for table, standing in standings.items():
        who = f"{pipeline}: state {table}"
        accept = f" `epochline accept-state {pipeline}` takes it as it is."
        if standing.now is None:
            raise StateError(
                f"{who} is a table that Epochline did not make, so nobody counted what is in it. Nothing was changed."
                " Rename it, run `epochline migrate`, and copy its rows into the new one."
            )
        if standing.left is None:
            if standing.now.keys:
                raise StateError(
                    f"{who} holds {standing.now}, though no epoch has written any. Nothing was changed."
                    + (" Empty it." if last_committed is None else f" Empty it, or:{accept}")
                )
            continue
        if standing.now != standing.left:
            said = (
                "the same number of keys, and other values" if standing.now.keys == standing.left.keys
                else f"{standing.now}"
            )  # fmt: skip
            raise StateError(
                f"{who} was changed by somebody else: epoch {standing.left_by} left {standing.left}, it now holds"
                f" {said}. Nothing was changed. Put it back, or:{accept}"
            )
        if standing.left_by != last_committed:
            raise StateError(
                f"{who} is of epoch {standing.left_by}, but the last committed epoch is {last_committed}: records were"
                f" committed that it has not seen. Nothing was changed. Restore it, or:{accept}"
            )


def recorded_state(standings: Mapping[str, StateStanding]) -> dict[str, Any]:
    """What an action on state writes down, as JSON."""
    return {
        table: None if one.now is None else {"keys": one.now.keys, "digest": str(one.now.digest)}
        for table, one in standings.items()
    }
