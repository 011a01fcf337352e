"""How fast records come and go, and how long unread ones are safe: rules without I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochline.protocol.standing import Tone

_NEAR_SECONDS = 6 * 3600
"""So little time to loss is shown as a warning."""


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
    known = [row for row in rows if row["written"] is not None and row["seconds_between"]]
    busy = sum(row["seconds"] for row in rows)
    return Rates(
        input=sum(row["written"] for row in known) / sum(row["seconds_between"] for row in known) if known else None,
        process=sum(row["records_read"] for row in rows) / busy if busy else None,
    )
