"""Servers of the stack: known by more than their pid, ended with what they started, nobody else touched."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from epochline.errors import StackError
from epochline.local.home import Home
from epochline.local.process import Daemon, identity
from tests.waiting import wait_until

ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def daemon(home: Home) -> Iterator[Daemon]:
    daemon = Daemon(home, "thing", stop_signals=((signal.SIGTERM, 1), (signal.SIGKILL, 5)))
    yield daemon
    daemon.stop()


def start(daemon: Daemon, *command: str) -> int:
    return daemon.start(command or ("sleep", "60"), environment=ENVIRONMENT, cwd=Path("/"))


def test_a_server_runs_under_the_recorded_pid_until_it_is_stopped_and_is_not_called_crashed(daemon: Daemon) -> None:
    pid = start(daemon)
    assert daemon.pid == pid
    wait_until(lambda: psutil.Process(pid).name() == "sleep")
    assert os.getsid(pid) == pid

    assert daemon.stop()
    assert identity(pid) is None
    assert not daemon.crashed
    assert not daemon.stop()


def test_a_server_that_ignores_the_first_signal_gets_the_next(daemon: Daemon) -> None:
    pid = start(daemon, "sh", "-c", "trap '' TERM; echo set; while :; do sleep 0.1; done")
    wait_until(lambda: "set" in daemon.log.read_text())

    daemon.stop()

    assert identity(pid) is None


def test_a_reused_pid_is_neither_ours_nor_stopped(home: Home, daemon: Daemon) -> None:
    with subprocess.Popen(["sleep", "60"]) as foreign:
        record = {"pid": foreign.pid, "identity": "another boot/12345", "started_at": 0}
        (home.run / "thing.json").write_text(json.dumps(record))

        assert daemon.pid is None
        assert daemon.crashed
        daemon.stop()

        assert foreign.poll() is None
        foreign.kill()


@pytest.mark.parametrize("detach", ["", "setsid "], ids=["same session", "own session"])
def test_a_killed_server_is_called_crashed_and_what_it_left_is_ended_at_the_next_start(
    daemon: Daemon, detach: str
) -> None:
    pid = start(daemon, "sh", "-c", f"{detach}sleep 61 & echo $!; wait")
    wait_until(lambda: daemon.log.read_text().strip().isdigit())
    child = int(daemon.log.read_text())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemon.crashed)
    assert psutil.pid_exists(child)

    start(daemon)

    assert not daemon.crashed
    wait_until(lambda: not psutil.pid_exists(child) or identity(child) is None)


def test_a_server_that_ends_while_starting_is_reported_with_its_last_words(daemon: Daemon) -> None:
    start(daemon, "sh", "-c", "echo no licence; exit 1")

    with pytest.raises(StackError, match=r"thing ended while starting.*no licence"):
        daemon.wait_ready(lambda: "not yet", seconds=10)


def test_a_server_that_is_not_ready_in_time_is_left_running(daemon: Daemon) -> None:
    start(daemon)

    with pytest.raises(StackError, match="still waking up"):
        daemon.wait_ready(lambda: "still waking up", seconds=0.1)

    assert daemon.pid is not None


def test_no_server_runs_without_a_pid_file_when_its_starter_dies(home: Home, daemon: Daemon) -> None:
    # The starter is killed at the last moment before the file is written.
    script = (
        "import os, signal, sys; from pathlib import Path; from epochline.local import process\n"
        "from epochline.local.home import Home\n"
        "process.write_private = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "process.Daemon(Home(Path(sys.argv[1])), 'thing', stop_signals=()).start(\n"
        "    ('sh', '-c', 'echo ran'), environment=dict(os.environ), cwd=Path('/'))"
    )
    starter = subprocess.run([sys.executable, "-c", script, str(home)], check=False, capture_output=True)
    time.sleep(0.5)

    assert starter.returncode == -9
    assert daemon.log.read_text() == ""
