"""Rows that a target refuses although every value fits its column, and their records."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from types import MappingProxyType

Refused = Mapping[tuple[str, int], Mapping[int, str]]
"""By topic and partition, the offsets of the records that an attempt sets aside, each with the reason."""

NONE_REFUSED: Refused = MappingProxyType({})

Place = tuple[str, int, int]

MOST = 100_000
"""Most refused records that one search finds: it holds them in memory. The next attempt finds the rest."""

REPORT_SECONDS = 10.0

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """One row that a target does not take.

    ``said`` is the violated rule without values, ``reason`` the server's message for the ledger. A row that belongs to
    no record has no ``place`` but a ``row``, as JSON. ``raised`` tells that code of the target raised the error.
    """

    sink: str
    said: str
    reason: str
    place: Place | None
    row: str | None = None
    raised: bool = False


class Search:
    """The time that a search for refused records may take; ``report`` gets its progress as text."""

    def __init__(self, within: timedelta, report: Callable[[str], None]) -> None:
        self.within = within
        self._report = report
        self._next = time.monotonic() + REPORT_SECONDS
        self._end = time.monotonic() + within.total_seconds()

    def goes_on(self, refused: int, checked: int, of: int | None = None) -> bool:
        """Report the progress if a report is due; returns whether there is time and room for more."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + REPORT_SECONDS
            self._report(f"checked={checked}{'' if of is None else f' of={of}'} refused={refused}")
        return refused < MOST and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return time.monotonic() >= self._end


def by_partition(found: Iterable[tuple[str, int, int, str]]) -> Refused:
    """Group records, given as topic, partition, offset and reason, by partition; a record keeps its first reason."""
    refused: dict[tuple[str, int], dict[int, str]] = {}
    reasons: dict[str, str] = {}
    for topic, partition, offset, reason in found:
        # Many records have one reason, and every task of a job gets them all.
        refused.setdefault((topic, partition), {}).setdefault(offset, reasons.setdefault(reason, reason))
    return refused


def in_words(rows: Iterable[RefusedRow]) -> str:
    """Describe the first refused rows with their rules, and count the rest."""
    distinct = sorted({(row.place or ("", 0, 0), row.sink, row.said) for row in rows})
    return summary([_in_words(*refusal) for refusal in distinct[:_SHOWN]], len(distinct))


def first_in_words(rows: Iterable[RefusedRow]) -> list[str]:
    """Describe the first refused rows with their rules."""
    return [_in_words(row.place or ("", 0, 0), row.sink, row.said) for row in islice(rows, _SHOWN)]


def summary(said: Sequence[str], count: int) -> str:
    """Join descriptions of the first rows, and say how many rows there are beyond them."""
    shown = said[:_SHOWN]
    more = count - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _in_words(place: Place, sink: str, rule: str) -> str:
    return f"{f'{place[0]}-{place[1]} offset {place[2]}' if place[0] else 'a row'} for {sink}: {rule}"
