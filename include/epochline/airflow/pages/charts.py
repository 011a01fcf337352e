"""Bars and lines for inline SVG: places and lengths, without markup."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

HOURS = 24
PHASES = ("wait", "plan", "start", "stage", "seal", "commit", "publish")
TASK_OF_PHASE = {
    "wait": "plan_epoch", "plan": "plan_epoch", "start": "pre_commit", "stage": "pre_commit", "seal": "pre_commit",
    "commit": "commit_epoch",
}  # fmt: skip
"""The task whose log tells of a phase. What was published is in the receipts."""
FATES = ("inserted", "updated", "deleted", "superseded", "unchanged")
_LEAST_SHARE = 0.02
_ORDER = ("COMMITTED", "PRE_COMMITTED", "PLANNED", "ABORTED")


@dataclass(frozen=True, slots=True)
class Bar:
    """One coloured rectangle of a chart, in the units of the chart."""

    kind: str
    """The name of its colour in the stylesheet."""
    column: int
    """From the left; 0 for a lying bar."""
    at: float
    """From the left of a lying bar, from the top of a standing one."""
    length: float
    value: float


def lying(parts: Iterable[tuple[str, float | None]], length: float = 100.0) -> Sequence[Bar]:
    """The parts of a whole side by side, the whole as long as given. Parts that are empty or unknown are left out.

    A small part is drawn larger than it is, so that it is seen: two quarantined records of a million matter.
    """
    some = [(kind, float(value)) for kind, value in parts if value and value > 0]
    least = _LEAST_SHARE * sum(value for _, value in some)
    whole, at, bars = sum(max(value, least) for _, value in some), 0.0, []
    for kind, value in some:
        share = length * max(value, least) / whole
        bars.append(Bar(kind, 0, round(at, 3), round(share, 3), value))
        at += share
    return bars


def phases(row: Mapping[str, Any]) -> Sequence[Bar]:
    """The phases of an epoch, from columns such as ``stage_seconds``."""
    return lying((name, row[f"{name}_seconds"]) for name in PHASES)


def by_hour(rows: Iterable[Mapping[str, Any]]) -> Mapping[int, Mapping[str, int]]:
    """The epochs of each of 24 hours by state, from a pipeline's rows of ``page_day``; hour 0 is the oldest."""
    hours: dict[int, dict[str, int]] = {}
    for row in rows:
        of_hour = hours.setdefault(min(max(row["hour"], 0), HOURS - 1), {})
        of_hour[row["state"]] = of_hour.get(row["state"], 0) + row["epochs"]
    return hours


def day(hours: Mapping[int, Mapping[str, int]], most: int, height: float = 20.0) -> Sequence[Bar]:
    """The epochs of 24 hours, from `by_hour`. A column of ``most`` epochs is as high as the chart."""
    bars = []
    for hour, one in sorted(hours.items()):
        at = height
        for state in _ORDER:
            share = height * one.get(state, 0) / most
            if share:
                at -= share
                bars.append(Bar(state, hour, round(at, 3), round(share, 3), one[state]))
    return bars


def line(
    values: Sequence[float | None], times: Sequence[datetime], most: float, width: float = 96.0, height: float = 20.0
) -> str:
    """The points of a line, for ``<polyline points>``; unknown values are left out.

    The first time is at the left edge, the last one at the right edge, and the value ``most`` at the top.
    """
    whole = (times[-1] - times[0]).total_seconds() or 1 if times else 1
    return " ".join(
        f"{round(width * (at - times[0]).total_seconds() / whole, 2):g},"
        f"{round(height - 1 - (height - 2) * value / (most or 1), 2):g}"
        for at, value in zip(times, values, strict=True)
        if value is not None
    )


def fates(receipt: Mapping[str, Any]) -> Sequence[Bar]:
    """What became of the rows of a sink; where they are not counted by fate, each was added."""
    if receipt["inserted"] is None:
        return lying([("inserted", receipt["rows"])])
    return lying((kind, receipt[kind]) for kind in FATES)
