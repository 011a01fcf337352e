"""What is printed: whole lines of tables for a file, lines that fit for a terminal, and logs of tasks."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import FileIO
from typing import Any

import pytest

from epochline.cli.ledger import show_epochs
from epochline.cli.logs import lines_of
from epochline.cli.overview import cell_of
from epochline.cli.printing import table
from epochline.cli.stack import show_status
from epochline.local.home import Home
from epochline.local.stack import AirflowStatus, KafkaStatus, PostgresStatus, SparkStatus, StackStatus, State

EPOCH = {
    "pipeline": "requests_per_client", "epoch_id": 12_345, "state": "PRE_COMMITTED", "attempt": 1,
    "records_read": 10_000_000, "records_passed": 9_999_990, "records_skipped": 0, "records_quarantined": 10,
    "rows_written": 9_999_990, "planned_at": datetime(2026, 3, 1, 12, tzinfo=UTC), "seconds": 7384.0,
    "longest_latency_seconds": 7399.0, "kind": "regular", "replays": None, "undone_by": None, "records_too_late": 0,
    "error": None,
}  # fmt: skip
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
HEADINGS = "pipeline epoch state attempt read passed skipped quarantined rows planned took latency"


@contextmanager
def terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Standard output is a terminal; the lines that it got are there after the block."""
    ours, theirs = os.openpty()
    lines: list[str] = []
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    with open(ours, "rb", buffering=0) as screen:
        with open(theirs, "w") as out, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            yield lines
        lines += _STYLE.sub("", b"".join(_until_closed(screen)).decode()).splitlines()


def _until_closed(screen: FileIO) -> Iterator[bytes]:
    """What was written. One read may return a part of it; after the last part Linux answers EIO."""
    try:
        while part := screen.read(65_536):
            yield part
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def test_a_ledger_at_a_terminal_of_100_columns_fits_and_names_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(100, monkeypatch) as lines:
        show_epochs([EPOCH])

    heading, row, left_out = lines
    assert max(map(len, lines)) <= 100
    assert row.split()[:3] == ["requests_per_client", "12345", "PRE_COMMITTED"]
    assert left_out.startswith("left out because the terminal has 100 columns: attempt, passed, skipped")
    gone = left_out.split(": ")[1].split(", ")
    assert sorted(heading.split() + gone) == sorted(HEADINGS.split())


def test_a_wide_terminal_gets_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(200, monkeypatch) as lines:
        show_epochs([EPOCH])

    assert [line.split() for line in lines[:1]] == [HEADINGS.split()]
    assert len(lines) == 2


def test_a_terminal_gets_a_bar_for_each_duration_and_a_pipe_gets_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    epochs = [EPOCH, {**EPOCH, "seconds": 3692.0}, {**EPOCH, "seconds": 0.1}, {**EPOCH, "seconds": None}]
    with terminal(200, monkeypatch) as lines:
        show_epochs(epochs)

    assert [re.sub(r"[^\u2580-\u259f]", "", line) for line in lines[1:]] == ["█" * 10, "█" * 5, "▏", ""]
    show_epochs(epochs)
    assert "█" not in capsys.readouterr().out


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    colour = re.compile(r"\x1b\[(?:\d+;)*[349]\d")

    show_epochs([EPOCH])
    assert colour.search(capsys.readouterr().out)
    monkeypatch.setenv("NO_COLOR", "1")
    show_epochs([EPOCH])
    assert not colour.search(capsys.readouterr().out)


def test_what_is_still_too_wide_goes_on_in_its_column_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(30, monkeypatch) as lines:
        table(("name", "reason"), [("orders", "x" * 60)])

    assert max(map(len, lines)) <= 30
    assert "".join(lines).count("x") == 60


def test_no_line_ends_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    table(("name", "reason"), [("orders", "a long reason"), ("others", None), ("people", "")])

    lines = capsys.readouterr().out.splitlines()

    assert lines == ["name    reason", "orders  a long reason", "others  -", "people"]


def test_a_run_whose_time_has_come_is_due_and_a_schedule_is_said_in_words() -> None:
    row = {"dag_paused": False, "next_run": datetime(2026, 3, 1, tzinfo=UTC), "schedule": timedelta(days=28)}

    assert cell_of(row, "next_run") == "due"
    assert cell_of(row | {"dag_paused": True}, "next_run") == "DAG paused"
    assert cell_of(row, "schedule") == "every 28 d"


def test_the_status_of_the_stack_names_whole_ports_at_a_narrow_terminal(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    part: dict[str, Any] = {
        "state": State.RUNNING, "version": "1.2.3", "port": 55_432, "pids": {"server": 4_194_301}, "logs": [],
    }  # fmt: skip
    files: dict[str, Any] = {"service_file": home.root, "password_file": home.root}
    dsn = "postgresql://epochline@127.0.0.1:55432/epochline"
    answer = StackStatus(
        home=home.root, secrets_file=home.root, postgres=PostgresStatus(**part, **files, dsn=dsn),
        kafka=KafkaStatus(**part), spark=SparkStatus(**part), airflow=AirflowStatus(**part, password_file=home.root, dags_folder=home.root),
    )  # fmt: skip

    with terminal(30, monkeypatch) as lines:
        show_status(answer)

    assert [line.split()[2] for line in lines[1:5]] == ["55432"] * 4
    assert f"postgres: {dsn}" in lines


def test_no_number_is_cut_where_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(20, monkeypatch) as lines:
        table(("records", "name", "bytes"), [(10_000_000, "orders", 2_000_000_000)])

    assert lines[1].split() == ["10000000", "orders", "2000000000"]


def test_a_pipe_gets_every_column_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    show_epochs([EPOCH])

    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == HEADINGS.split()
    assert len(row) > 100


MOMENT = "2026-03-01T12:00:01.5Z"


def test_what_airflow_says_of_itself_is_left_out_unless_it_is_a_warning() -> None:
    messages = [
        {"event": "::group::Pre Execute", "level": "info"},
        {"timestamp": MOMENT, "event": "bundles loaded", "level": "info"},
        {"timestamp": MOMENT, "event": "the DAG file fails", "level": "error"},
        {"event": "::endgroup::"},
        {"timestamp": MOMENT, "event": "epoch 1 is planned", "level": "info"},
        {"event": "::group::of my own"},
        {"event": "a line without a time"},
    ]

    assert list(lines_of(messages)) == [
        "12:00:01 ERROR the DAG file fails",
        "12:00:01 epoch 1 is planned",
        "         a line without a time",
    ]


def test_an_error_is_shown_with_its_places_and_one_of_airflow_without() -> None:
    frame = {"filename": "parse.py", "lineno": 3, "name": "parse"}
    mine = {"exc_type": "ValueError", "exc_value": "oh", "frames": [frame]}
    airflows = {"exc_type": "AirflowFailException", "exc_value": "epoch 1 was aborted", "frames": [frame]}

    lines = list(lines_of([{"event": "failed", "level": "error", "error_detail": [mine, airflows]}]))

    assert lines == [
        "         ERROR failed",
        "           parse.py:3 in parse",
        "         ValueError: oh",
        "         AirflowFailException: epoch 1 was aborted",
    ]
