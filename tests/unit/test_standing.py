"""One rule gives the word for a pipeline's state to the command line and to the pages in Airflow."""

from __future__ import annotations

from typing import Any

import pytest

from epochline.airflow.pages.standing import standing_of_epoch, standing_of_pipeline
from epochline.cli.faults import aborting_fault
from epochline.cli.standing import GOES_ON, decided
from epochline.protocol.standing import StandingWord, word_of_aborts, word_of_pipeline

ROW: dict[str, Any] = {
    "pipeline": "orders", "dropped_at": None, "dropped_by": "ada", "dropped_reason": "done", "paused_at": None,
    "paused_by": None, "paused_reason": "why", "approval": None, "lease_expired": False, "attempt": 1,
    "epoch_id": 7, "state": None, "undone_by": None, "committed_later": None, "data_lost": False, "failures": 0,
    "due": None, "lag": 0, "interval_seconds": None, "seconds_since_observed": 1.0,
}  # fmt: skip
CASES: list[tuple[dict[str, Any], StandingWord]] = [
    ({"dropped_at": 1, "paused_at": 1, "state": "PLANNED"}, StandingWord.DROPPED),
    ({"paused_at": 1, "paused_by": "epochline"}, StandingWord.STOPPED),
    ({"paused_at": 1, "paused_by": "ada", "state": "PLANNED", "lease_expired": True}, StandingWord.PAUSED),
    ({"state": "PRE_COMMITTED", "approval": "awaited"}, StandingWord.AWAITING_APPROVAL),
    ({"state": "PRE_COMMITTED", "lease_expired": True}, StandingWord.PRE_COMMITTED),
    ({"state": "PLANNED", "lease_expired": True}, StandingWord.LEFT_PLANNED),
    ({"state": "PLANNED"}, StandingWord.STAGING),
]


@pytest.mark.parametrize(("changes", "word"), CASES)
def test_a_state_has_the_same_word_on_the_command_line_and_on_the_pages(
    changes: dict[str, Any], word: StandingWord
) -> None:
    row = {**ROW, **changes}
    state = row["state"]
    unfinished = {
        "unfinished_epoch": 7 if state else None, "unfinished_state": state, "unfinished_attempt": row["attempt"],
    }  # fmt: skip

    assert word_of_pipeline(row, state=state) is word
    assert standing_of_pipeline(row | unfinished).state == word
    assert decided("orders", row)[0] == (word if word.stands else GOES_ON)


@pytest.mark.parametrize(("changes", "word"), [case for case in CASES if "paused_at" not in case[0]])
def test_an_unfinished_epoch_has_the_word_of_its_pipeline(changes: dict[str, Any], word: StandingWord) -> None:
    assert standing_of_epoch({**ROW, **changes}).state == word


def test_a_pipeline_that_nobody_stopped_and_that_has_no_unfinished_epoch_has_no_such_word() -> None:
    assert word_of_pipeline(ROW, state=None) is None
    assert decided("orders", ROW) == (GOES_ON, None)


@pytest.mark.parametrize(
    ("aborts", "word"),
    [(0, None), (1, StandingWord.FAILING), (2, StandingWord.FAILING), (3, StandingWord.KEEPS_ABORTING)],
)
def test_the_command_line_and_the_pages_count_aborts_by_one_rule(aborts: int, word: StandingWord | None) -> None:
    row = {**ROW, "aborts": aborts, "aborted_error": "why", "aborted_epoch": 7, "unfinished_epoch": None}

    assert word_of_aborts(aborts) is word
    fault = aborting_fault("orders", row)
    assert (fault.word if fault else None) == (word if word and word.stands else None)
    shown = standing_of_pipeline({**row, "failures": aborts}).state
    assert shown == (word or "caught up")
