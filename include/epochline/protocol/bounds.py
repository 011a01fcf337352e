"""The verdict on an epoch: whether its numbers are inside the declared bounds, and how they differ, in words. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from epochline.declare.bounds import Bounds, Measure
from epochline.protocol.epoch import Approval, Counts, EpochKind
from epochline.protocol.quantities import counted, number

Value = Decimal | bool | None
"""What a measure gives. A number may be NaN or infinite."""

_OF_ANY_SIZE = frozenset({EpochKind.REQUEUE, EpochKind.IDLE})
"""Kinds that are no share of the stream, so that their size says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwritten:
    """How many of the keys that an epoch staged for an upsert target the target has already."""

    keys: int
    there: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the staged rows say: of each upsert target its keys, and the value of each measure by its name."""

    overwritten: Mapping[str, Overwritten] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All that a verdict depends on. ``earlier`` has the numbers of earlier epochs, by the measure's name."""

    kind: EpochKind
    counts: Counts
    rows: int
    measured: Measured = field(default_factory=Measured)
    earlier: Mapping[str, Sequence[Decimal]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How an epoch differs from its bounds, one sentence for each; and its numbers, for later epochs, by their keys."""

    outside: tuple[str, ...] = ()
    numbers: Mapping[str, Decimal] = field(default_factory=dict)

    @property
    def approval(self) -> Approval:
        """What follows of it."""
        return Approval.AWAITED if self.outside else Approval.INSIDE

    def __str__(self) -> str:
        return "; ".join(self.outside)


def judge(bounds: Bounds, found: Found) -> Verdict:
    """Compare what was found with the bounds. What cannot be compared is outside."""
    values = found.measured.values
    numbers = {
        measure.key: value
        for measure in bounds.measures
        if isinstance(value := values[measure.name], Decimal) and value.is_finite()
    }
    return Verdict(outside=tuple(_outside(bounds, found)), numbers=numbers)


def _outside(bounds: Bounds, found: Found) -> Iterator[str]:
    counts, rows = found.counts, counted(found.rows, "row")
    if bounds.least_rows is not None and found.rows < bounds.least_rows and found.kind not in _OF_ANY_SIZE:
        yield f"{rows} staged, at least {number(bounds.least_rows)} expected"
    if bounds.most_rows is not None and found.rows > bounds.most_rows:
        yield f"{rows} staged, at most {number(bounds.most_rows)} expected"
    yield from _share("records quarantined", counts.quarantined, counts.read, bounds.most_quarantined)
    yield from _share("records skipped", counts.skipped, counts.read, bounds.most_skipped)
    for table, keys in found.measured.overwritten.items():
        yield from _share(f"keys of {table} overwritten", keys.there, keys.keys, bounds.most_overwritten)
    for measure in bounds.measures:
        compared = measure.change is not None and found.kind not in _OF_ANY_SIZE
        earlier = found.earlier.get(measure.name, ()) if compared else None
        yield from _beyond(measure, found.measured.values[measure.name], earlier)


def _share(what: str, part: int, whole: int, most: Decimal | None) -> Iterator[str]:
    if most is not None and part > most * whole:
        yield f"{number(part)} of {number(whole)} {what} ({part / whole:.2%}), at most {_percent(most)} expected"


def _beyond(measure: Measure, value: Value, earlier: Sequence[Decimal] | None) -> Iterator[str]:
    """How a value is outside; ``earlier`` is None if it is compared with none."""
    if isinstance(value, bool):
        if not value:
            yield f"{measure} is false"
        return
    if value is None or value.is_nan():
        yield f"{measure} is {'NULL' if value is None else 'NaN'}"
        return
    if measure.least is not None and value < measure.least:
        yield f"{measure} is {plain(value)}, at least {plain(measure.least)} expected"
    if measure.most is not None and value > measure.most:
        yield f"{measure} is {plain(value)}, at most {plain(measure.most)} expected"
    if measure.change is None or earlier is None:
        return
    if not earlier:
        if measure.first == "outside" or not value.is_finite():
            yield f"{measure} is {plain(value)}, and no earlier epoch has a number to compare it with"
        return
    median = statistics.median(earlier)
    if not value.is_finite() or abs(value - median) > measure.change * abs(median):
        of = "the last epoch" if len(earlier) == 1 else f"the median of the last {len(earlier)} epochs"
        change = f" ({(value - median) / abs(median):+.1%})" if median and value.is_finite() else ""
        yield f"{measure} is {plain(value)}, {of} {plain(median)}{change}, at most ±{_percent(measure.change)} expected"


def plain(value: Decimal) -> str:
    """A number in full, with commas between thousands, without zeros at its end; a very large or small one is short."""
    if not value.is_finite():
        return str(value)
    if value and not -15 < value.adjusted() < 24:
        return f"{value:.6e}"
    text = f"{value:,f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def _percent(share: Decimal) -> str:
    return f"{plain(share * 100)} %"


def misfit(measure: Measure, value: Value) -> str | None:
    """Why a value is not what the limits of its measure are about; None if it is."""
    limited = (measure.least, measure.most, measure.change) != (None, None, None)
    if isinstance(value, bool) and limited:
        return (
            f"{measure} gave a condition, and limits are for numbers. Remove least, most and change, or select a number"
        )
    if isinstance(value, Decimal) and not limited:
        return f"{measure} gave a number without limits. Declare least, most or change, or select a condition"
    return None
