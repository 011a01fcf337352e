"""What came of an epoch in one line, as XCom and the pages show it (issues 18, 19)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from epochline.airflow.outcome import EpochOutcome, kind_of, no_epoch, not_planned
from epochline.errors import DataLossError, PipelinePausedError, SourceUnavailableError, TargetError
from epochline.protocol.epoch import EpochState

NOW = datetime(2026, 11, 26, tzinfo=UTC)
COMMITTED: dict[str, Any] = {
    "pipeline": "orders", "epoch_id": 12, "state": EpochState.COMMITTED, "attempt": 1, "partitions": 4, "offsets": 16_000,
    "shared_start": 4000, "shared_until": 8000, "rows_written": 3998, "records_quarantined": 0, "records_read": 0,
    "error_class": None, "paused_at": None, "paused_command": None, "approval": None,
}  # fmt: skip
ABORTED: dict[str, Any] = {**COMMITTED, "state": EpochState.ABORTED, "rows_written": None}
SECRET = "alice@example.org"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {**COMMITTED, "records_quarantined": 2, "records_read": 4000, "attempt": 2},
            "epoch 12 · [4000, 8000) of 4 partitions · 3,998 rows · 2 quarantined (0.1%) · committed after 2 tries",
        ),
        (COMMITTED, "epoch 12 · [4000, 8000) of 4 partitions · 3,998 rows · committed"),
        (
            {**COMMITTED, "rows_written": 1, "undone_by": 15},
            "epoch 12 · [4000, 8000) of 4 partitions · 1 row · committed, then undone by epoch 15",
        ),
        (
            {**ABORTED, "error_class": "RowsRefusedError", "paused_at": NOW},
            "epoch 12 · [4000, 8000) of 4 partitions · aborted: rows refused · no offset moved; the pipeline is paused;"
            " to go on, run `epochline resume orders --reason …`",
        ),
        (
            {**ABORTED, "attempt": 3, "error_class": "KeyError"},
            "epoch 12 · [4000, 8000) of 4 partitions · aborted after 3 tries: KeyError · no offset moved; the next run"
            " reads the range again",
        ),
        (
            {**ABORTED, "committed_later": 13, "paused_at": NOW},
            "epoch 12 · [4000, 8000) of 4 partitions · aborted · no offset moved; epoch 13 read on from the same place",
        ),
        (
            {**ABORTED, "state": EpochState.PRE_COMMITTED},
            "epoch 12 · [4000, 8000) of 4 partitions · pre-committed · the next run commits it",
        ),
        (
            {**ABORTED, "state": EpochState.PRE_COMMITTED, "approval": "awaited"},
            "epoch 12 · [4000, 8000) of 4 partitions · pre-committed · it waits for an approval in Airflow",
        ),
        (
            {**ABORTED, "state": EpochState.PLANNED, "attempt": 2},
            "epoch 12 · [4000, 8000) of 4 partitions · planned, attempt 2",
        ),
    ],
)  # fmt: skip
def test_an_epoch_has_one_line_with_its_range_its_rows_and_what_came_of_it(values: dict[str, Any], line: str) -> None:
    assert str(EpochOutcome(**values)) == line


def test_ranges_that_differ_are_summed_up_and_an_epoch_may_read_nothing() -> None:
    differing = {**COMMITTED, "offsets": 1003, "partitions": 2, "shared_start": None, "shared_until": None}

    assert EpochOutcome(**differing).reading == "1,003 offsets of 2 partitions"
    assert EpochOutcome(**COMMITTED | {"partitions": 1}).reading == "[4000, 8000) of 1 partition"
    assert EpochOutcome(**differing | {"partitions": 0}).reading == "no range"


def test_the_line_repeats_nothing_of_what_an_error_says() -> None:
    """SEC-5: a user's code, a trigger and a constraint's detail may say a record's values."""
    row: dict[str, Any] = {
        "pipeline": "orders", "epoch_id": 12, "state": "ABORTED", "attempt": 1, "partitions": 1, "offsets": 9,
        "shared_start": None, "shared_until": None, "rows_written": None, "records_read": 9, "records_quarantined": 0, "approval": None,
        "error": f"KeyError: {SECRET}", "error_class": "KeyError", "paused_at": NOW, "paused_reason": SECRET,
        "paused_command": None, "undone_by": None, "committed_later": None,
    }  # fmt: skip

    for state in EpochState:
        line = str(EpochOutcome.of_row(row | {"state": state}))
        assert SECRET not in line
    assert "KeyError" in str(EpochOutcome.of_row(row))
    assert SECRET not in not_planned(TargetError(f"{SECRET} is refused.", "migrate orders"))


def test_a_run_without_an_epoch_says_why_and_what_to_do() -> None:
    assert no_epoch("nothing to read") == "no epoch · nothing to read · nothing to do"
    lost = not_planned(DataLossError("orders: records are gone.", "declare-loss orders --reason …"))
    assert lost == "no epoch · data loss · to go on, run `epochline declare-loss orders --reason …`"
    paused = not_planned(PipelinePausedError("orders is paused by ada.", "resume orders --reason …"))
    assert paused == "no epoch · pipeline paused · to go on, run `epochline resume orders --reason …`"
    away = not_planned(SourceUnavailableError("no broker answers"))
    assert away == "no epoch · source unavailable · Airflow tries again, or the next run plans"


@pytest.mark.parametrize(
    ("error_class", "kind"),
    [
        ("RowsRefusedError", "rows refused"), ("EpochTimeoutError", "epoch timeout"),
        ("PythonException", "PythonException"), (None, None),
    ],
)  # fmt: skip
def test_an_error_is_named_by_its_class(error_class: str | None, kind: str | None) -> None:
    assert kind_of(error_class) == kind
