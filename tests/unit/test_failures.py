"""What made an attempt fail is read from the error that the ledger keeps (N1, K11)."""

import signal

import pytest

from epochline.airflow.pre_commit import how_it_ended
from epochline.errors import Failure, RowsRefusedError
from epochline.protocol.failures import RecordedError, failure_of, folded


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
