"""Figures of the pages, without markup or I/O: bars and lines for inline SVG, rates, and how long records are safe."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from epochline.protocol.standing import Tone

HOURS = 24
PHASES = ("wait", "plan", "start", "stage", "seal", "commit", "publish")
TASK_OF_PHASE = {
    "wait": "plan_epoch", "plan": "plan_epoch", "start": "pre_commit", "stage": "pre_commit", "seal": "pre_commit",
    "commit": "commit_epoch",
}  # fmt: skip
"""The task whose log tells of a phase. What was published is in the receipts."""
FATES = ("inserted", "updated", "deleted", "superseded", "unchanged")
_LEAST_SHARE = 0.02
_NEAR_SECONDS = 6 * 3600
"""So little time to loss is shown as a warning."""
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
    shown = [(kind, float(value)) for kind, value in parts if value and value > 0]
    least = _LEAST_SHARE * sum(value for _, value in shown)
    whole, at, bars = sum(max(value, least) for _, value in shown), 0.0, []
    for kind, value in shown:
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
    for hour, counts in sorted(hours.items()):
        top = height
        for state in _ORDER:
            share = height * counts.get(state, 0) / most
            if share:
                top -= share
                bars.append(Bar(state, hour, round(top, 3), round(share, 3), counts[state]))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How long the unread records are safe: a number of seconds at least, or a sentence where there is no number."""

    text: str
    tone: Tone
    seconds: float | None = None
    note: str = ""


def time_to_loss(row: Mapping[str, Any]) -> Loss:
    """The least time until Kafka may delete an unread record, by a row of ``page_pipelines`` or ``page_partitions``."""
    if row["lag"] is None:
        return Loss(text="unknown", tone="quiet", note="Kafka was not asked yet")
    if not row["lag"]:
        return Loss(text="nothing is unread", tone="quiet")
    by_size = "sooner if the log reaches its limit of size" if row["by_size"] else ""
    old = "or producers write old timestamps" if row["by_size"] else "sooner if producers write old timestamps"
    seconds = row["seconds_to_loss"]
    if seconds is not None and seconds <= 0:
        return Loss(text="any moment", tone="bad", seconds=seconds, note="unread records may be past their retention")
    if seconds is not None:
        return Loss(
            text="at least",
            tone="warning" if seconds < _NEAR_SECONDS else "quiet",
            seconds=seconds,
            note=f"{by_size} {old}".strip(),
        )
    if row["retention_unknown"]:
        return Loss(text="unknown", tone="quiet", note="the DAG epochline_log_ends has not asked for the retention yet")
    if row["by_age"]:
        return Loss(text="unknown", tone="quiet", note="until a first epoch tells how old the records are")
    if row["by_size"]:
        return Loss(text="not by age", tone="quiet", note=by_size)
    return Loss(
        text="never", tone="quiet", note="the topic is compacted" if row["compacted"] else "retention has no limit"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Records per second over the newest epochs: written to the topics, and read by epochs from plan to commit."""

    input: float | None
    process: float | None

    @property
    def text(self) -> str:
        """What the two say together."""
        if self.input is None or self.process is None:
            return "Two committed epochs are needed to compare them."
        if self.input > self.process:
            return "Records come faster than epochs read them: the pipeline falls behind."
        return "Epochs read faster than records come."


def rates(rows: Sequence[Mapping[str, Any]]) -> Rates:
    """The rates over some epochs, by their rows of ``page_flow``."""
    timed = [row for row in rows if row["written"] is not None and row["seconds_between"]]
    busy = sum(row["seconds"] for row in rows)
    return Rates(
        input=sum(row["written"] for row in timed) / sum(row["seconds_between"] for row in timed) if timed else None,
        process=sum(row["records_read"] for row in rows) / busy if busy else None,
    )
