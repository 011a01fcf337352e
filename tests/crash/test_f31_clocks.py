"""Clocks jump and disagree: of the machine that runs a task, and of those that stamp the records."""

import ast
import time
from datetime import timedelta
from pathlib import Path

import pytest

from epochline.errors import EpochBusyError
from tests.checker import recover
from tests.crash.conftest import NewLine
from tests.crash.line import Line

PACKAGE = Path(__file__).parents[2] / "include" / "epochline"
HOUR = 3600.0
STAMPS = {
    "the future first": [4102444800000, 1, 1700000000000, 0],
    "an hour back": [1700000000000, 1700000000000 - 3_600_000, 4102444800000, 1],
}


@pytest.mark.fault("F31")
def test_epochs_follow_each_other_whatever_clients_think_of_the_time(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F31: order, leases and times come from the ledger and the clock of its database."""
    real = time.time
    for number, ahead in enumerate((HOUR, -HOUR, 365 * 24 * HOUR, -30 * 24 * HOUR), start=1):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: real() + ahead)
        line.some(3, f"with a clock {ahead} s ahead")
        assert line.run(f"run-{number}") == "success"
    monkeypatch.undo()

    times = line.query("SELECT planned_at, committed_at, lease_until FROM epochline.epochs ORDER BY epoch_id")
    assert len(times) == 4
    flat = [moment for planned, committed, _lease in times for moment in (planned, committed)]
    assert flat == sorted(flat)
    assert all((lease - planned).total_seconds() < 90 for planned, _committed, lease in times)
    recover(line)


@pytest.mark.fault("F31")
def test_a_client_whose_clock_is_ahead_does_not_take_a_live_lease(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-4."""
    line.to_planned("run-1")
    assert line.begin(1, "run-1") is not None
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + HOUR)

    with pytest.raises(EpochBusyError, match="its lease is alive"):
        line.plan("run-2", lease=timedelta(seconds=0.2))
    monkeypatch.undo()
    since = time.monotonic()
    assert line.run("run-1") == "success"
    recover(line, since=since)


@pytest.mark.fault("F31")
@pytest.mark.parametrize("first", STAMPS)
def test_stamps_of_records_decide_nothing(new_line: NewLine, first: str) -> None:
    """Offsets order a partition, whatever the producers' clocks wrote."""
    line = new_line(configs={"message.timestamp.after.max.ms": str(2**62)})
    for number, stamp in enumerate(STAMPS[first]):
        line.produce({0: [f"stamped {number}"]}, timestamp_ms=stamp)
        assert line.run() == "success"
    recover(line)


@pytest.mark.fault("F31")
def test_no_code_of_the_protocol_reads_a_clients_clock() -> None:
    """F31: of coordinator, ledger, sinks and Spark's side none asks for the time of day."""
    clocks = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
    for folder in ("coordinator", "postgres", "sinks", "spark"):
        modules = list((PACKAGE / folder).rglob("*.py"))
        assert modules, f"{folder} is gone"
        for path in modules:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute):
                    assert ast.unparse(node) not in clocks, f"{path}:{node.lineno}"
