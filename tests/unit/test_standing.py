"""One rule gives a pipeline's state, the reason and the next step to the command line and to the pages (issue 35)."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from epochline.cli.standing import UNKNOWN, decided
from epochline.protocol.standing import StandingWord, standing_of_epoch, standing_of_pipeline

NOW = datetime.now(UTC)
ROW: dict[str, Any] = {
    **UNKNOWN, "pipeline": "orders", "lag": 0, "seconds_since_plan": 30.0, "interval_seconds": 60.0,
    "data_lost": False, "committed_epoch": 6, "committed_at": NOW,
}  # fmt: skip
PLANNED: dict[str, Any] = {"epoch_id": 7, "state": "PLANNED", "attempt": 1, "lease_expired": False, "planned_at": NOW}
SEALED: dict[str, Any] = {**PLANNED, "state": "PRE_COMMITTED"}
FAILED: dict[str, Any] = {
    "failures": 1, "failing_since": NOW, "failed_epoch": 7, "failed_attempt": 1, "failure": "KeyError: 'city'",
    "failure_class": "KeyError", "failure_command": None,
}  # fmt: skip
ABORTED: dict[str, Any] = {
    "aborts": 1, "failing_since": None, "failure": None, "failure_command": None, "failed_epoch": None,
}  # fmt: skip
ABORTED |= {"aborted_epoch": 7, "aborted_at": NOW, "aborted_error": "why", "aborted_command": None}
PAUSED: dict[str, Any] = {"paused_at": NOW, "paused_by": "ada", "paused_reason": "why", "paused_command": None}
STOPPED: dict[str, Any] = {**PAUSED, "paused_by": "epochline"}
PLANLESS: dict[str, Any] = {
    "plan_error": "TargetError: no", "plan_failures": 2, "plan_failing_since": NOW, "plan_command": "migrate",
}  # fmt: skip
OUTSIDE: dict[str, Any] = {"approval": "awaited", "outside": "9 rows staged, at most 8 expected"}
RESUME, RUN, ABORT = "resume orders --reason …", "run orders", "abort orders 7 --reason …"

CASES: list[tuple[dict[str, Any], str, str, str | None]] = [
    ({}, "caught up", "good", None),
    ({"lag": 5}, "behind", "good", None),
    ({"lag": None, "seconds_since_plan": None}, "not started", "quiet", "trigger orders --unpause"),
    ({"seconds_since_plan": 181.0}, "silent", "warning", "trigger orders --unpause"),
    ({"seconds_since_plan": 9e9, "interval_seconds": None}, "caught up", "good", None),
    ({"due": {"kafka:x": 3}}, "not shown everywhere", "warning", "publish orders"),
    (FAILED, "failing", "warning", RUN),
    ({**FAILED, "failures": 2, **PLANNED, "attempt": 3}, "failing", "warning", None),
    ({**FAILED, "failures": 3, **PLANNED}, "keeps failing", "bad", None),
    ({**FAILED, "failure_command": "migrate orders"}, "failing", "warning", "migrate orders"),
    (ABORTED, "failing", "warning", RUN),
    ({**FAILED, "failures": 3, **ABORTED, "aborts": 3}, "keeps aborting", "bad", RUN),
    (PLANNED, "staging", "busy", None),
    ({**PLANNED, "attempt": 3}, "staging, attempt 3", "busy", None),
    ({**PLANNED, "lease_expired": True}, "left planned", "warning", ABORT),
    ({**PLANNED, "lease_expired": True, **FAILED}, "left planned", "warning", ABORT),
    ({**SEALED, "lease_expired": True}, "pre-committed", "busy", None),
    ({**SEALED, **OUTSIDE, **FAILED}, "awaiting approval", "warning", "approve orders 7 --reason …"),
    (PLANLESS, "cannot plan", "bad", "migrate"),
    ({**PLANLESS, "plan_command": None, **FAILED}, "cannot plan", "bad", RUN),
    (
        {"committed_read": 100, "committed_quarantined": 11, "quarantining_above": 0.1},
        "quarantining", "warning", "quarantine orders --epoch 6",
    ),
    ({"committed_read": 100, "committed_quarantined": 10, "quarantining_above": 0.1}, "caught up", "good", None),
    ({"committed_read": 99, "committed_quarantined": 99, "quarantining_above": 0.1}, "caught up", "good", None),
    ({"data_lost": True, **PLANLESS}, "unread records deleted", "bad", "declare-loss orders --reason …"),
    ({**PAUSED, **PLANNED, **FAILED}, "paused", "warning", RESUME),
    (STOPPED, "stopped", "bad", RESUME),
    ({**STOPPED, "paused_command": "accept-ledger orders"}, "stopped", "bad", "accept-ledger orders"),
    ({**PAUSED, "dropped_at": NOW, "dropped_by": "ada", "dropped_reason": "done"}, "dropped", "quiet", None),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "state", "tone", "command"), CASES)
def test_a_pipeline_has_one_state_with_a_reason_and_the_command_that_goes_on(
    changes: dict[str, Any], state: str, tone: str, command: str | None
) -> None:
    standing = standing_of_pipeline({**ROW, **changes})

    assert (standing.state, standing.tone, standing.command) == (state, tone, command)
    assert standing.advice.endswith((".", "?"))
    shown, stands = decided({**ROW, **changes}), standing.word.stands
    assert (shown.state, shown.stands) == (standing.word, stands)
    assert shown.reason == (str(standing) if stands or tone == "warning" else None)
    if stands and standing.word is not StandingWord.UNREAD_DELETED:
        assert standing.since == NOW
    for said in ("paused_reason", "plan_error", "failure"):
        if changes.get(said) and standing.reason and standing.word is not StandingWord.DROPPED:
            break
    else:
        return
    assert stands


def test_the_reason_of_a_failed_attempt_is_the_newest_error() -> None:
    assert standing_of_pipeline({**ROW, **FAILED}).reason == "Epoch 7: KeyError: 'city'"
    assert standing_of_pipeline({**ROW, **ABORTED, "aborted_error": None}).reason == "Epoch 7: no reason was recorded"
    assert "TargetError: no." in str(standing_of_pipeline({**ROW, **PLANLESS}))


def test_a_pipeline_that_the_ledger_does_not_know_was_not_started() -> None:
    shown = decided({**UNKNOWN, "pipeline": "orders"})
    assert (shown.state, shown.stands, shown.reason) == (StandingWord.NOT_STARTED, False, None)


EPOCH: dict[str, Any] = {
    **PLANNED, "pipeline": "orders", "state": "COMMITTED", "undone_by": None, "paused_at": None, "approval": None,
    "committed_later": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "state", "advice"),
    [
        ({}, "committed", "it was committed."),
        ({"attempt": 2}, "committed", "it was committed after 2 tries"),
        ({"undone_by": 9}, "undone", "Epoch 9 took its rows"),
        ({"state": "ABORTED"}, "aborted", "The next run reads the range again"),
        ({"state": "ABORTED", "committed_later": 8}, "aborted", "epoch 8 read on"),
        ({"state": "ABORTED", **PAUSED}, "aborted", "orders is paused by ada (why)."),
        ({"state": "PLANNED"}, "staging", "Spark stages epoch 7"),
        ({"state": "PLANNED", "attempt_error": "KeyError: 'city'"}, "failing", "Attempt 1 failed. No offset moved"),
        ({"state": "PLANNED", "attempt_error": "no", "lease_expired": True}, "left planned", "nobody stages it"),
        ({"state": "PLANNED", **PAUSED}, "staging", "Spark stages epoch 7"),
        ({"state": "PLANNED", "lease_expired": True, **PAUSED}, "left planned", "orders is paused by ada (why)."),
        ({"state": "PLANNED", "lease_expired": True}, "left planned", "nobody stages it"),
        ({"state": "PRE_COMMITTED"}, "pre-committed", "staged and sealed"),
    ],
)
def test_an_epoch_says_what_becomes_of_it(changes: dict[str, Any], state: str, advice: str) -> None:
    standing = standing_of_epoch({**EPOCH, **changes})

    assert standing.state == state
    assert advice in str(standing)


@pytest.mark.parametrize("changes", [PLANNED, {**PLANNED, "lease_expired": True}, SEALED, {**SEALED, **OUTSIDE}])
def test_an_unfinished_epoch_has_the_word_of_its_pipeline(changes: dict[str, Any]) -> None:
    assert standing_of_epoch({**EPOCH, **changes}) == standing_of_pipeline({**ROW, **changes})


def test_every_state_has_a_row_in_the_documents() -> None:
    """U3: an operator looks up the word that a page or a command shows."""
    of_epochs = {StandingWord.UNDONE, StandingWord.ABORTED, StandingWord.COMMITTED}
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| ([a-zA-Z, -]+?) \|", page.partition("## Why a pipeline stands")[2], re.MULTILINE)
    explained = {word for row in rows for word in row.split(", ")}

    assert set(StandingWord) - of_epochs <= explained
