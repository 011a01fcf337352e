"""What the log of a failing task begins with: one readable line, and a traceback only if it says more (issue 19)."""

import logging
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from epochline.airflow.connections import epochline_errors
from epochline.airflow.outcome import show_outcome
from epochline.errors import EpochStateError, SourceUnavailableError


def failing(error: BaseException, cause: Exception | None = None) -> BaseException:
    """What a task raises."""
    with pytest.raises(BaseException) as raised, epochline_errors():  # noqa: PT011 - every error is looked at
        raise error from cause
    return raised.value


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (EpochStateError("epoch 1\nis ABORTED"), AirflowFailException, "EpochStateError: epoch 1 is ABORTED"),
        (SourceUnavailableError("no broker"), AirflowException, "SourceUnavailableError: no broker"),
        (AirflowFailException("refused.\nNothing was changed."), AirflowFailException, "refused. Nothing was changed."),
        (KeyError("city"), KeyError, "KeyError: 'city'"),
        (AirflowTaskTimeout("Timeout, PID: 1"), AirflowTaskTimeout, "AirflowTaskTimeout: Timeout, PID: 1"),
    ],
    ids=["no retry helps", "a retry helps", "a refusal", "a user's code", "a time-out"],
)
def test_a_failure_is_one_line_of_the_log_before_airflow_shows_it(
    caplog: pytest.LogCaptureFixture, error: BaseException, kind: type[BaseException], line: str
) -> None:
    assert type(failing(error)) is kind

    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [(logging.ERROR, line)]


def test_a_traceback_shows_the_cause_of_an_error_and_not_the_error_twice() -> None:
    cause = ConnectionError("refused")

    assert failing(EpochStateError("wrong")).__suppress_context__
    assert failing(EpochStateError("wrong")).__cause__ is None
    shown = failing(SourceUnavailableError("away"), cause).__cause__
    assert isinstance(shown, SourceUnavailableError)
    assert shown.__cause__ is cause


def test_a_skipped_task_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(failing(AirflowSkipException("nothing to read")), AirflowSkipException)

    assert caplog.records == []


def test_an_outcome_that_airflow_does_not_take_fails_no_task(caplog: pytest.LogCaptureFixture) -> None:
    """The epoch is committed, whatever Airflow's API server says."""

    class Refusing:
        def xcom_push(self, key: str, value: Any) -> None:
            raise ConnectionError(f"{key} is not taken")

    show_outcome({"ti": Refusing()}, "epoch 1 · committed")

    assert "outcome is not taken" in caplog.text
