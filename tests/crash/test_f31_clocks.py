"""Clocks jump and disagree: of the machine that runs a task, of the database, and of those that stamp the records."""

import ast
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from epochline.coordinator import LEASE, renew
from epochline.errors import EpochBusyError, EpochFencedError
from epochline.local import postgres
from epochline.local.stack import Stack
from epochline.operations import tidy
from epochline.protocol.epoch import EpochState
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.staging import StagingTicket
from tests.checker import recover
from tests.conftest import throw_away
from tests.crash.conftest import NewLine
from tests.crash.line import Line
from tests.databases import QUICK, Databases
from tests.ports import choose_ports

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


# The clock of PostgreSQL.


@dataclass(frozen=True)
class Clock:
    """A PostgreSQL whose clock a file says. Its monotonic clock goes on."""

    file: Path
    databases: Databases

    def jump(self, by: str) -> None:
        """Be ahead of the machine by so much, such as ``-3h``, from now on."""
        self.file.write_text(by)


@pytest.fixture(scope="module")
def jumping() -> Iterator[Clock]:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("libfaketime is not installed")
    home = Path(tempfile.mkdtemp(prefix="epochline-clock-"))
    home.chmod(0o755)
    file = home / "offset"
    file.write_text("+0")
    faked = {
        "LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": file, "FAKETIME_NO_CACHE": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1, "DONT_FAKE_MONOTONIC": 1,
    }  # fmt: skip
    stack = Stack(home / "stack", postgres_settings=QUICK)
    choose_ports(stack.home)
    account_of = postgres.server_account

    def with_clock(*of: Any) -> postgres.Account:
        """The server's account, which loads the library after it left root's: a semaphore of root would refuse it."""
        account = account_of(*of)
        return replace(account, prefix=(*account.prefix, "env", *(f"{name}={value}" for name, value in faked.items())))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(postgres, "server_account", with_clock)
        try:
            stack.up(parts=("postgres",), report=lambda _line: None)
            yield Clock(file, Databases(stack.postgres, "WAL_LOG"))
        finally:
            throw_away(stack)
            shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def clock(jumping: Clock) -> Iterator[Clock]:
    yield jumping
    jumping.jump("+0")


@pytest.fixture
def begun(clock: Clock, new_line: NewLine) -> Line:
    """A pipeline with a committed epoch, and an attempt of run two that stages the next one."""
    line = new_line(dsn=clock.databases.new())
    line.some()
    assert line.run("run-1") == "success"
    line.some(5, "after the first")
    line.begin(line.to_planned("run-2").epoch.epoch_id, "run-2")  # type: ignore[union-attr]
    return line


def living(line: Line) -> tuple[StagingTicket, Sequence[PlannedRange]]:
    """The attempt of the unfinished epoch, and its ranges."""
    with line.ledger.transaction() as tx:
        epoch = tx.epochs.unfinished(line.name)
        assert epoch is not None
        attempt = tx.attempts.live(epoch)
        assert attempt is not None
        ticket = tx.attempts.ticket(attempt, tx.epochs.declaration(epoch), tx.epochs.planned_targets(epoch))
        return ticket, tx.epochs.ranges(epoch)


JUMPS = pytest.mark.parametrize("by", ["+3h", "-3h", "+400d", "-400d"])


@pytest.mark.slow
@pytest.mark.fault("F31")
@JUMPS
def test_a_jump_of_the_databases_clock_ends_no_living_attempt(begun: Line, clock: Clock, by: str) -> None:
    """INV-4, I5: the janitor looks at the moment of the jump, before the lease is renewed, and once more."""
    ticket, ranges = living(begun)
    since = time.monotonic()
    clock.jump(by)

    tidied = tidy(
        begun.ledger, begun.run_of("the janitor"),
        sleep=lambda _: renew(begun.ledger, ticket, begun.run_of("run-2"), lease=LEASE),
    )  # fmt: skip

    assert (tidied.ended, tidied.swept) == ((), 0)
    begun.stage_parts(map(begun.read, ranges), ticket)
    begun.seal(ticket, "run-2")
    begun.commit(2)
    assert begun.query("SELECT attempt FROM epochline.epochs WHERE epoch_id = 2") == [(1,)]
    begun.some(3, "after the jump")
    assert begun.run("run-3") == "success"
    clock.jump("+0")
    begun.some(3, "after the jump back")
    recover(begun, since=since)


@pytest.mark.slow
@pytest.mark.fault("F31")
@pytest.mark.parametrize("who", ["the janitor", "a run"])
def test_an_attempt_that_a_jump_of_the_databases_clock_gives_up_writes_nothing_that_counts(
    begun: Line, clock: Clock, who: str
) -> None:
    """INV-4: silent for longer than the second look, or met by another run at once, it is fenced and its range read again."""
    ticket, _ = living(begun)
    since = time.monotonic()
    clock.jump("+3h")

    if who == "the janitor":
        assert len(tidy(begun.ledger, begun.run_of(who), sleep=lambda _: None).ended) == 1
    assert begun.run("run-3") == "success"

    with pytest.raises(EpochFencedError):
        begun.seal(ticket, "run-2")
    assert begun.state(2) is EpochState.ABORTED
    recover(begun, since=since)
