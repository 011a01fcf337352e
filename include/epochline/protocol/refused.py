"""Rows that a target refuses although every value fits its column, and their records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

Refused = Mapping[tuple[str, int], Mapping[int, str]]
"""By topic and partition, the offsets of the records that an attempt sets aside, each with the reason."""

NONE_REFUSED: Refused = MappingProxyType({})

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """One row that a target does not take.

    Args:
        sink: the target.
        said: the violated rule, without any value of the row.
        reason: the server's message with values, for the ledger, which only its owner reads.
        place: place of the row's record; None if a transform or an aggregate made the row.
        row: the staged row as JSON; None if the row has a record.
        raised: whether code of the target, such as a trigger, raised the error.
    """

    sink: str
    said: str
    reason: str
    place: Place | None
    row: str | None = None
    raised: bool = False


def by_partition(found: Iterable[tuple[str, int, int, str]]) -> Refused:
    """Group records, given as topic, partition, offset and reason, by partition; a record keeps its first reason."""
    refused: dict[tuple[str, int], dict[int, str]] = {}
    for topic, partition, offset, reason in found:
        refused.setdefault((topic, partition), {}).setdefault(offset, reason)
    return refused


def in_words(rows: Iterable[RefusedRow]) -> str:
    """Describe the first refused rows with their rules, and count the rest."""
    found = sorted({(one.place or ("", 0, 0), one.sink, one.said) for one in rows})
    said = [
        f"{f'{place[0]}-{place[1]} offset {place[2]}' if place[0] else 'a row'} for {sink}: {rule}"
        for place, sink, rule in found[:_SHOWN]
    ]
    more = len(found) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")
