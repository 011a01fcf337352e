"""Rows that a target refuses although every value fits its column, and the records that they came from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

Refused = Mapping[tuple[str, int], Mapping[int, str]]
"""By topic and partition, the offsets of records that an attempt leaves out, each with the reason."""

NONE_REFUSED: Refused = MappingProxyType({})

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """One row that a target does not take.

    Args:
        sink: the target.
        said: by which rule, without any value of the row.
        reason: the same with the values that the server shows; for the ledger, where its owner alone reads it.
        place: of the row's record; None where a transform or an aggregate made the row.
        row: what was staged, as JSON; None where the record says it.
    """

    sink: str
    said: str
    reason: str
    place: Place | None
    row: str | None = None


def by_partition(found: Iterable[tuple[str, int, int, str]]) -> Refused:
    """Topic, partition, offset and reason of each record, put together; the first reason of a record stays."""
    refused: dict[tuple[str, int], dict[int, str]] = {}
    for topic, partition, offset, reason in found:
        refused.setdefault((topic, partition), {}).setdefault(offset, reason)
    return refused


def in_words(rows: Iterable[RefusedRow]) -> str:
    """The first of some refused rows with their rules, and how many more there are."""
    found = sorted({(one.place or ("", 0, 0), one.sink, one.said) for one in rows})
    said = [
        f"{f'{place[0]}-{place[1]} offset {place[2]}' if place[0] else 'a row'} for {sink}: {rule}"
        for place, sink, rule in found[:_SHOWN]
    ]
    more = len(found) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")
