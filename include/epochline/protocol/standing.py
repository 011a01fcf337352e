"""The state of a pipeline and of an epoch, the reason, and the next step: one rule for pages and command line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

Tone = Literal["bad", "warning", "busy", "good", "quiet"]

KEEPS = 3
"""This many failures without a commit between them no longer look like a failure that passes by itself."""

LEAST_JUDGED = 100
"""An epoch with fewer records says nothing about the share that is quarantined."""

_LATE_INTERVALS = 3
"""A pipeline counts as silent after this many intervals of its schedule without a plan."""

Row = Mapping[str, Any]


class StandingWord(StrEnum):
    """A state as `epochline lag`, `epochline list` and the pages in Airflow name it, the most urgent fact first."""

    tone: Tone
    stands: bool
    """Whether the pipeline may stay as it is until a person acts."""

    def __new__(cls, word: str, tone: Tone, stands: bool = False) -> StandingWord:
        """A word with its tone."""
        self = str.__new__(cls, word)
        self._value_, self.tone, self.stands = word, tone, stands
        return self

    DROPPED = "dropped", "quiet", True
    STOPPED = "stopped", "bad", True
    PAUSED = "paused", "warning", True
    UNREAD_DELETED = "unread records deleted", "bad", True
    CANNOT_PLAN = "cannot plan", "bad", True
    AWAITING_APPROVAL = "awaiting approval", "warning", True
    KEEPS_ABORTING = "keeps aborting", "bad", True
    KEEPS_FAILING = "keeps failing", "bad", True
    FAILING = "failing", "warning", True
    LEFT_PLANNED = "left planned", "warning", True
    STAGING = "staging", "busy"
    PRE_COMMITTED = "pre-committed", "busy"
    QUARANTINING = "quarantining", "warning", True
    NOT_SHOWN = "not shown everywhere", "warning"
    SILENT = "silent", "warning"
    NOT_STARTED = "not started", "quiet"
    BEHIND = "behind", "good"
    CAUGHT_UP = "caught up", "good"
    UNDONE = "undone", "quiet"
    ABORTED = "aborted", "warning"
    COMMITTED = "committed", "good"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A state, since when, the reason, what becomes of it, and the command of the next step."""

    word: StandingWord
    advice: str
    since: datetime | None = None
    reason: str | None = None
    """What the ledger keeps of the cause: an error, or what an operator said."""
    command: str | None = None
    """The command line that goes on, without ``epochline``; None if nobody has to do anything."""
    attempt: int = 1
    tone: Tone

    @property
    def state(self) -> str:
        """The word, and which attempt it is."""
        return f"{self.word}, attempt {self.attempt}" if self.attempt > 1 else str(self.word)

    @property
    def anchor(self) -> str:
        """The id of the first row in this state, in the list of all pipelines."""
        return "state-" + self.state.replace(",", "").replace(" ", "-")

    def __str__(self) -> str:
        """What to read at a terminal: the reason, the advice, and the command."""
        text = " ".join(filter(None, (self.reason and f"{self.reason.rstrip('.')}.", self.advice)))
        return text if self.command is None else f"{text} To go on, run `epochline {self.command}`"


def _standing(word: StandingWord, advice: str, **more: Any) -> Standing:
    return Standing(**{"word": word, "advice": advice, "tone": word.tone, **more})


def way_out_of_pause(pipeline: str, command: str | None) -> str:
    """The command that lets a paused pipeline go on, by default ``resume``; ``command`` is kept with the pause."""
    return command or f"resume {pipeline} --reason …"


def standing_of_pipeline(row: Row) -> Standing:
    """The state of a pipeline, from a row of ``epochline.standings`` with ``lag`` and, at times, ``data_lost``."""
    return (
        _decided(row)
        or (_lost(row) if row.get("data_lost") else None)
        or _planless(row)
        or (_unfinished(row) if row["approval"] == "awaited" or _is_left(row) else None)
        or _failing(row)
        or (_unfinished(row) if row["epoch_id"] is not None else None)
        or _quarantining(row)
        or _at_rest(row)
    )


def _decided(row: Row) -> Standing | None:
    name = row["pipeline"]
    if row["dropped_at"]:
        return _standing(
            StandingWord.DROPPED, "Nothing runs any more. Its history stays.", since=row["dropped_at"],
            reason=f"Dropped by {row['dropped_by']}: {row['dropped_reason']}",
        )  # fmt: skip
    if not row["paused_at"]:
        return None
    facts: dict[str, Any] = {"since": row["paused_at"], "command": way_out_of_pause(name, row["paused_command"])}
    if row["paused_by"] == "epochline":
        advice = "Epochline stopped the pipeline, because its next run would fail again. Repair the cause first."
        return _standing(StandingWord.STOPPED, advice, reason=f"Stopped by epochline: {row['paused_reason']}", **facts)
    advice = "It plans no epoch until somebody resumes it."
    reason = f"Paused by {row['paused_by']}: {row['paused_reason']}"
    return _standing(StandingWord.PAUSED, advice, reason=reason, **facts)


def _lost(row: Row) -> Standing:
    return _standing(
        StandingWord.UNREAD_DELETED,
        "Kafka deleted records before they were read. Declare the loss, and the next run goes on.",
        since=row["plan_failing_since"],
        command=f"declare-loss {row['pipeline']} --reason …",
    )


def _planless(row: Row) -> Standing | None:
    if row["plan_error"] is None:
        return None
    runs = "The last run" if row["plan_failures"] == 1 else f"The last {row['plan_failures']} runs"
    return _standing(
        StandingWord.CANNOT_PLAN, f"{runs} wrote no epoch. No offset moved.", since=row["plan_failing_since"],
        reason=row["plan_error"], command=row["plan_command"] or f"run {row['pipeline']}",
    )  # fmt: skip


def _failing(row: Row) -> Standing | None:
    name, failures, aborts = row["pipeline"], row["failures"], row["aborts"]
    if aborts < 1 and failures < 1:
        return None
    if aborts >= KEEPS:
        return _standing(
            StandingWord.KEEPS_ABORTING,
            f"Its last {aborts} tries were aborted, and nothing was committed between them."
            " No offset moved; the next run reads the range again.",
            since=row["failing_since"] or row["aborted_at"], reason=_reason(row),
            command=row["failure_command"] or row["aborted_command"] or f"run {name}",
        )  # fmt: skip
    times = "once" if failures <= 1 else f"{failures} times"
    return _standing(
        StandingWord.KEEPS_FAILING if failures >= KEEPS else StandingWord.FAILING,
        f"Failed {times} since the last commit. No offset moved; "
        + ("the next try reads the same range." if row["epoch_id"] else "the next run reads the range again.")
        + (" Its declared Endless restarts never give up." if row["endless"] else ""),
        since=row["failing_since"] or row["aborted_at"], reason=_reason(row),
        # The run that owns an unfinished epoch tries again by itself, and another run would be refused.
        command=row["failure_command"] or (None if row["epoch_id"] else f"run {name}"),
    )  # fmt: skip


def _reason(row: Row) -> str | None:
    if row["failure"] is not None:
        return f"Epoch {row['failed_epoch']}: {row['failure']}"
    return f"Epoch {row['aborted_epoch']}: {row['aborted_error'] or 'no reason was recorded'}"


def _is_left(row: Row) -> bool:
    """Whether nobody stages a planned epoch: then no further try comes by itself, whatever failed before."""
    return bool(row["state"] == "PLANNED" and row["lease_expired"])


def _unfinished(row: Row) -> Standing:
    """The state of an unfinished epoch. A lease guards a planned one only: the next run takes over when it is over."""
    name, epoch = row["pipeline"], row["epoch_id"]
    facts: dict[str, Any] = {"since": row["planned_at"]}
    abort = f"abort {name} {epoch} --reason …"
    if row["approval"] == "awaited":
        advice = f"Nothing else is planned meanwhile. Approve the epoch, or end it by `epochline {abort}`."
        reason = f"Epoch {epoch} is pre-committed and outside its bounds: {row['outside']}"
        approve = f"approve {name} {epoch} --reason …"
        return _standing(StandingWord.AWAITING_APPROVAL, advice, reason=reason, command=approve, **facts)
    if row["state"] == "PRE_COMMITTED":
        advice = f"All rows of epoch {epoch} are staged and sealed. Its run or the next one commits it."
        return _standing(StandingWord.PRE_COMMITTED, advice, **facts)
    if _is_left(row):
        advice = (
            f"Epoch {epoch} is planned, nobody stages it, and its lease has expired. If its DAG is paused, unpause it:"
            " the next run ends the epoch and reads its range again; or end the epoch."
        )
        return _standing(StandingWord.LEFT_PLANNED, advice, command=abort, **facts)
    if row.get("attempt_error") is not None:
        advice = f"Attempt {row['attempt']} failed. No offset moved; the next try reads the same range."
        return _standing(StandingWord.FAILING, advice, reason=f"Epoch {epoch}: {row['attempt_error']}", **facts)
    advice = f"Nothing to do: Spark stages epoch {epoch}."
    return _standing(StandingWord.STAGING, advice, attempt=row["attempt"], **facts)


def _quarantining(row: Row) -> Standing | None:
    """Whether the last commit set aside more of its records than the pipeline tolerates."""
    read, aside, above = row["committed_read"] or 0, row["committed_quarantined"] or 0, row["quarantining_above"]
    if read < LEAST_JUDGED or aside <= above * read:
        return None
    name, epoch = row["pipeline"], row["committed_epoch"]
    return _standing(
        StandingWord.QUARANTINING,
        f"Epoch {epoch} set {aside:,} of its {read:,} records aside ({aside / read:.0%}); more than {above:.0%} is too"
        " many. They wait in the quarantine. Correct the parse or the producer, then requeue them.",
        since=row["committed_at"], command=f"quarantine {name} --epoch {epoch}",
    )  # fmt: skip


def _at_rest(row: Row) -> Standing:
    name = row["pipeline"]
    if row["due"]:
        return _standing(
            StandingWord.NOT_SHOWN,
            "Committed, but a sink does not show every epoch yet. Each run publishes what is due.",
            command=f"publish {name}",
        )  # fmt: skip
    lag, interval, silent = row.get("lag"), row["interval_seconds"], row["seconds_since_plan"]
    if lag is None:
        return _standing(StandingWord.NOT_STARTED, "No plan has asked Kafka yet.", command=f"trigger {name} --unpause")
    if interval and silent and silent > _LATE_INTERVALS * interval:
        return _standing(
            StandingWord.SILENT, "No run has planned for several intervals of the schedule. Is the DAG paused, is the"
            " scheduler up?",
            since=row["last_plan_at"],
            command=f"trigger {name} --unpause",
        )  # fmt: skip
    if lag:
        return _standing(StandingWord.BEHIND, "Nothing to do: the next run goes on at the head.")
    return _standing(StandingWord.CAUGHT_UP, "Nothing to do.")


def standing_of_epoch(row: Row) -> Standing:
    """What becomes of an epoch, from its row of ``page_epoch``: with its pipeline's pause and its attempt's failure."""
    name, tries = row["pipeline"], row["attempt"]
    if row["state"] == "COMMITTED" and row["undone_by"] is not None:
        return _standing(StandingWord.UNDONE, f"Epoch {row['undone_by']} took its rows out of the target.")
    if row["state"] == "COMMITTED":
        after = f" after {tries} tries" if tries > 1 else ""
        return _standing(StandingWord.COMMITTED, f"Nothing to do: it was committed{after}.")
    if row["state"] == "ABORTED" and row["committed_later"] is not None:
        later = f"Nothing to do: no offset moved, and epoch {row['committed_later']} read on from the same head."
        return _standing(StandingWord.ABORTED, later, tone="quiet")
    # A pause stops no epoch that is being staged.
    if row["paused_at"] and (row["state"] != "PLANNED" or _is_left(row)):
        words = {"ABORTED": StandingWord.ABORTED, "PRE_COMMITTED": StandingWord.PRE_COMMITTED}
        return _standing(
            words.get(row["state"], StandingWord.LEFT_PLANNED), "It plans no epoch until somebody resumes it.",
            tone="bad",
            reason=f"{name} is paused by {row['paused_by']} ({row['paused_reason']})",
            command=way_out_of_pause(name, row["paused_command"]),
        )  # fmt: skip
    if row["state"] == "ABORTED":
        return _standing(StandingWord.ABORTED, "No offset moved. The next run reads the range again.")
    return _unfinished(row)
