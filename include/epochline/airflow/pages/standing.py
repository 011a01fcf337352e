"""What state a pipeline or an epoch is in, and what an operator does about it: rules without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from epochline.errors import way_out_of_pause
from epochline.protocol.standing import StandingWord, word_of_aborts, word_of_pipeline, word_of_unfinished

Tone = Literal["good", "busy", "warning", "bad", "quiet"]

URGENCY: Sequence[Tone] = ("bad", "warning", "busy", "good", "quiet")
"""Which pipelines an operator looks at first."""

_LATE_INTERVALS = 3
"""So many intervals of its schedule may pass without a plan before a pipeline counts as silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A state in two or three words, how urgent it is, and what to do in one sentence."""

    state: str
    tone: Tone
    advice: str
    command: str | None = None
    """The command line that goes on; None if nobody has to do anything, or no command does it."""

    @property
    def anchor(self) -> str:
        """The id of the first row in this state, in the list of all pipelines."""
        return "state-" + self.state.replace(",", "").replace(" ", "-")


def standing_of_pipeline(row: Mapping[str, Any]) -> Standing:
    """The state of a pipeline, the most urgent fact first.

    Args:
        row: of the statement ``page_pipelines``.
    """
    name, epoch = row["pipeline"], row["unfinished_epoch"]
    word = word_of_pipeline(row, state=None if epoch is None else row["unfinished_state"])
    if word is StandingWord.DROPPED:
        return Standing(state=word, tone="quiet", advice="Nothing runs any more. The history stays.")
    resume = f"epochline {way_out_of_pause(name, row['paused_reason'])}" if row["paused_at"] else None
    if word is StandingWord.STOPPED:
        advice = "Epochline stopped the pipeline, because its next run would fail again. Repair the cause first."
        return Standing(state=word, tone="bad", advice=advice, command=resume)
    if word is StandingWord.PAUSED:
        advice = f"{row['paused_by']} paused the pipeline. It plans no epoch until somebody resumes it."
        return Standing(state=word, tone="warning", advice=advice, command=resume)
    if row["data_lost"]:
        return Standing(
            state="unread records deleted", tone="bad", command=f"epochline declare-loss {name} --reason …",
            advice="Kafka deleted records before they were read. Declare the loss, and the next run goes on.",
        )  # fmt: skip
    if word is not None and epoch is not None:
        return _unfinished(name, epoch, word, attempt=row["unfinished_attempt"])
    if failing := word_of_aborts(row["failures"]):
        times = "once" if row["failures"] == 1 else f"{row['failures']} times"
        return Standing(
            state=failing,
            tone="bad" if failing.stands else "warning",
            command=f"epochline ledger {name} --epoch {row['aborted_epoch']}",
            advice=f"Failed {times} since the last commit. No offset moved; the next run reads the range again.",
        )
    if row["due"]:
        return Standing(
            state="not shown everywhere", tone="warning", command=f"epochline publish {name}",
            advice="Committed, but a sink does not show every epoch yet. Each run publishes what is due.",
        )  # fmt: skip
    return _at_rest(row)


def _at_rest(row: Mapping[str, Any]) -> Standing:
    """The state of a pipeline that nothing holds up."""
    if row["lag"] is None:
        return Standing(state="not started", tone="quiet", advice="No plan has asked Kafka yet. Trigger a run.")
    interval, silent = row["interval_seconds"], row["seconds_since_observed"]
    if interval and silent > _LATE_INTERVALS * interval:
        return Standing(
            state="silent", tone="warning", command=f"epochline trigger {row['pipeline']} --unpause",
            advice="No run has planned for several intervals of the schedule. Is the DAG paused, is the scheduler up?",
        )  # fmt: skip
    if row["lag"]:
        return Standing(state="behind", tone="good", advice="Nothing to do: the next run goes on at the head.")
    return Standing(state="caught up", tone="good", advice="Nothing to do.")


def standing_of_epoch(row: Mapping[str, Any]) -> Standing:
    """What becomes of an epoch.

    Args:
        row: of the statement ``page_epoch``.
    """
    name, epoch = row["pipeline"], row["epoch_id"]
    if row["state"] == "COMMITTED" and row["undone_by"] is not None:
        advice = f"Epoch {row['undone_by']} took its rows out of the target."
        return Standing(state="undone", tone="quiet", advice=advice)
    if row["state"] == "COMMITTED":
        tries = "" if row["attempt"] <= 1 else f" after {row['attempt']} tries"
        return Standing(state=f"committed{tries}", tone="good", advice="Nothing to do: it is committed.")
    if row["state"] == "ABORTED" and row["committed_later"] is not None:
        advice = f"Nothing to do: no offset moved, and epoch {row['committed_later']} read on from the same head."
        return Standing(state="aborted", tone="quiet", advice=advice)
    if row["paused_at"]:
        return Standing(
            state=f"{row['state'].lower().replace('_', '-')}, pipeline paused", tone="bad",
            command=f"epochline {way_out_of_pause(name, row['paused_reason'])}",
            advice=f"{row['paused_by']} paused the pipeline: {row['paused_reason']}",
        )  # fmt: skip
    if row["state"] == "ABORTED":
        return Standing(state="aborted", tone="warning", advice="No offset moved. The next run reads the range again.")
    return _unfinished(name, epoch, word_of_unfinished(row, state=row["state"]), attempt=row["attempt"])


def _unfinished(pipeline: str, epoch: int, word: StandingWord, *, attempt: int) -> Standing:
    abort = f"epochline abort {pipeline} {epoch} --reason …"
    if word is StandingWord.AWAITING_APPROVAL:
        advice = f"Epoch {epoch} is staged and waits for an approval in Airflow. Approve it, or abort it."
        return Standing(state=word, tone="warning", advice=advice, command=abort)
    if word is StandingWord.PRE_COMMITTED:
        advice = f"All rows of epoch {epoch} are staged and sealed. Its run or the next one commits it."
        return Standing(state=word, tone="busy", advice=advice)
    if word is StandingWord.LEFT_PLANNED:
        return Standing(
            state=word, tone="warning", command=abort,
            advice=f"Nobody stages epoch {epoch}. If its DAG is paused, unpause it: the next run ends the epoch and"
            " reads its range again.",
        )  # fmt: skip
    tries = "" if attempt <= 1 else f", attempt {attempt}"
    return Standing(state=f"{word}{tries}", tone="busy", advice=f"Nothing to do: Spark stages epoch {epoch}.")
