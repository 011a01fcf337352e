"""What is said of an epoch and of a failure: one readable line, the reason in words, and a traceback only if it says more."""

import logging
import signal
import socket
import threading
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from epochline.airflow.connections import epochline_errors
from epochline.airflow.outcome import EpochOutcome, kind_of, no_epoch, not_planned, show_outcome
from epochline.airflow.pre_commit import how_it_ended
from epochline.coordinator import commit
from epochline.errors import (
    DataLossError,
    EpochStateError,
    Failure,
    LedgerUnavailableError,
    PipelinePausedError,
    RowsRefusedError,
    SourceUnavailableError,
    TargetError,
)
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import EpochState
from epochline.protocol.failures import RecordedError, failure_of, folded
from tests.in_memory.kafka import FakeKafka


def failing(error: BaseException, cause: Exception | None = None) -> BaseException:
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


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (None, Failure.PASSING),
        ("its process was lost, or could not reach the ledger; attempt 2 took its place", Failure.PASSING),
        ("lease expired; recovered by run manual__2026-11-24T11:00:00+00:00 of orders", Failure.PASSING),
        ("JobLostError: the driver of the Spark job was killed by signal 9 (SIGKILL)", Failure.PASSING),
        ("SourceUnavailableError: Kafka does not answer", Failure.PASSING),
        ("EpochTimeoutError: was not staged and sealed within an hour", Failure.PASSING),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", Failure.PASSING),
        ("SparkException: Job aborted due to stage failure: Python worker exited unexpectedly", Failure.PASSING),
        ("Py4JJavaError: org.apache.spark.api.python.PythonException: KeyError: 'city'", Failure.CODE),
        ("PythonException: An exception was thrown from the Python worker. KeyError: 'city'", Failure.CODE),
        ("KeyError: 'city'", Failure.CODE),
        ("TargetCodeError: refused by a target: for t: DivisionByZero", Failure.CODE),
        ("NonDeterministicPartError: other rows", Failure.CODE),
        ("RowsRefusedError: refused by a target: NotNullViolation; teardown of run 1 of orders", Failure.INCURABLE),
        ("BadRecordError: orders-0 offset 7: no JSON", Failure.CODE),
    ],
)
def test_a_failure_that_passes_is_told_from_one_that_needs_somebody(error: str | None, failure: Failure) -> None:
    """N1, K11."""
    name, found, _ = (error or "").partition(": ")
    assert failure_of(name if found and name.isidentifier() else None, error) is failure


def test_a_recorded_error_is_one_line() -> None:
    assert str(RecordedError.of(RowsRefusedError("two\n  lines"))) == "RowsRefusedError: two lines"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-signal.SIGKILL, "was killed by signal 9 (SIGKILL)"),
        (137, "was killed by signal 9 (SIGKILL)"),
        (143, "was killed by signal 15 (SIGTERM)"),
        (1, "ended with exit code 1"),
    ],
)
def test_a_drivers_end_is_told_in_words(code: int, said: str) -> None:
    assert how_it_ended(code) == f"the driver of the Spark job {said}"


def test_rows_of_one_error_are_folded_whatever_attempts_it_names_and_what_was_added() -> None:
    said = "ValueError: attempt {} of epoch 7 of orders: no such column (parse.py:3)"
    lost = "its process was lost, or could not reach the ledger; attempt {} took its place"
    newest_first = [
        (6, None, "r2"), (5, said.format(5) + "; the run failed", "r2"), (4, said.format(4), "r2"),
        (3, said.format(3) + "; attempt 4 took its place", "r1"), (2, lost.format(3), "r1"), (1, lost.format(2), "r1"),
    ]  # fmt: skip
    rows = [{"attempt": number, "error": error, "run_id": run} for number, error, run in newest_first]

    assert [[row["attempt"] for row in group] for group in folded(rows)] == [[6], [5, 4, 3], [2, 1]]
    assert [[row["attempt"] for row in group] for group in folded(rows, "run_id")] == [[6], [5, 4], [3], [2, 1]]
    assert [len(group) for group in folded({**row, "error": None} for row in rows)] == [1] * 6


NOW = datetime(2026, 11, 26, tzinfo=UTC)
COMMITTED: dict[str, Any] = {
    "pipeline": "orders", "epoch_id": 12, "state": EpochState.COMMITTED, "attempt": 1, "partitions": 4, "offsets": 16_000,
    "shared_start": 4000, "shared_until": 8000, "rows_written": 3998, "records_quarantined": 0, "records_read": 0,
    "error_class": None, "paused_at": None, "paused_command": None, "approval": None,
}  # fmt: skip
ABORTED: dict[str, Any] = {**COMMITTED, "state": EpochState.ABORTED, "rows_written": None}
SECRET = "alice@example.org"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {**COMMITTED, "records_quarantined": 2, "records_read": 4000, "attempt": 2},
            "3,998 rows · 2 quarantined (0.1%) · committed after 2 tries",
        ),
        (COMMITTED, "3,998 rows · committed"),
        ({**COMMITTED, "rows_written": 1, "undone_by": 15}, "1 row · committed, then undone by epoch 15"),
        (
            {**ABORTED, "error_class": "RowsRefusedError", "paused_at": NOW},
            "aborted: rows refused · no offset moved; the pipeline is paused;"
            " to go on, run `epochline resume orders --reason …`",
        ),
        (
            {**ABORTED, "attempt": 3, "error_class": "KeyError"},
            "aborted after 3 tries: KeyError · no offset moved; the next run reads the range again",
        ),
        (
            {**ABORTED, "committed_later": 13, "paused_at": NOW},
            "aborted · no offset moved; epoch 13 read on from the same place",
        ),
        ({**ABORTED, "state": EpochState.PRE_COMMITTED}, "pre-committed · the next run commits it"),
        (
            {**ABORTED, "state": EpochState.PRE_COMMITTED, "approval": "awaited"},
            "pre-committed · it awaits approval",
        ),
        ({**ABORTED, "state": EpochState.PLANNED, "attempt": 2}, "planned, attempt 2"),
    ],
)
def test_an_epoch_has_one_line_with_its_range_its_rows_and_what_came_of_it(values: dict[str, Any], said: str) -> None:
    assert str(EpochOutcome(**values)) == f"epoch 12 · [4000, 8000) of 4 partitions · {said}"


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


def test_a_commit_asks_twice_and_does_not_try_to_write_down_that_nobody_answered() -> None:
    """P6: once, and once more in case an answer was lost."""
    asked = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                asked.append(1)
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        ledger = PostgresLedger(
            f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/none?sslmode=disable&gssencmode=disable"
        )

        with pytest.raises(LedgerUnavailableError):
            commit(ledger, FakeKafka(), "orders", 1)
        server.shutdown(socket.SHUT_RDWR)

    assert len(asked) == 2
