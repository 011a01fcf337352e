"""The home of a stack: private files, one command at a time, its ports, and its servers, known by more than their pid."""

import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from epochline.errors import StackError
from epochline.local import credentials
from epochline.local.home import DEFAULTS, Home, Ports, holder, is_free, write_private
from epochline.local.process import Daemon, identity
from epochline.local.stack import Stack
from tests.commands import python
from tests.waiting import wait_until


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_is_readable_by_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "secret", "x")
    finally:
        os.umask(before)

    assert mode(tmp_path / "secret") == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_folder_that_holds_other_things_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    home = Home(tmp_path)

    with pytest.raises(StackError, match="not made by epochline"):
        home.create()
    home.wipe()

    assert (tmp_path / "thesis.tex").exists()


def test_a_wiped_home_is_gone(home: Home) -> None:
    home.wipe()

    assert not home.root.exists()
    assert not home.exists()


@pytest.mark.parametrize("wiped", [False, True])
def test_a_second_command_waits_for_the_first_which_may_wipe_the_home(tmp_path: Path, wiped: bool) -> None:
    home = Home(tmp_path / "home")
    said: list[str] = []
    order: list[str] = []

    def second() -> None:
        with home.lock(said.append):
            order.append("second")
            assert (home.root / "epochline-home").exists()
            order.append("in a home")

    with home.lock():
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: said)
        order.append("first")
        if wiped:
            home.wipe()
    thread.join(timeout=60)

    assert order == ["first", "second", "in a home"]
    assert len(said) == 1
    assert str(home) in said[0]


def test_the_lock_of_a_killed_command_is_free(home: Home) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from epochline.local.home import Home\n"
        "with Home(Path(sys.argv[1])).lock(): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert python("-c", script, home, check=False).returncode == -9

    said: list[str] = []
    with home.lock(said.append):
        assert said == []


def test_credentials_are_made_once_and_show_no_secret(home: Home) -> None:
    first = credentials.ensure(home)

    assert first == credentials.ensure(home) == credentials.load(home)
    assert mode(home.secrets) == 0o600
    assert first.epochline not in repr(first)
    assert len({first.postgres, first.epochline, first.airflow, first.airflow_admin}) == 4


def test_a_home_of_an_earlier_version_gets_what_is_new_once(home: Home) -> None:
    before = json.loads(credentials.ensure(home).model_dump_json())
    del before["epochline_job"]
    home.secrets.write_text(json.dumps(before))

    again = credentials.ensure(home)

    assert again == credentials.load(home)
    assert {name: getattr(again, name) for name in before} == before


def test_lost_credentials_are_not_replaced_while_data_needs_them(home: Home) -> None:
    home.path("postgres", "data").mkdir(parents=True)

    with pytest.raises(StackError, match="restore the file"):
        credentials.ensure(home)


def test_damaged_credentials_are_reported_without_their_content(home: Home) -> None:
    write_private(home.secrets, '{"postgres": 5, "epochline": "hunter2"')

    with pytest.raises(StackError) as caught:
        credentials.load(home)

    assert str(home.secrets) in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochline.local.home.becomes_free", is_free)


def test_a_port_in_use_is_not_free_and_its_holder_is_named(listener: int) -> None:
    assert not is_free(listener)
    assert "pid" in holder(listener)


def test_a_taken_default_is_replaced_by_a_free_port(home: Home, listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochline.local.home.DEFAULTS", {**DEFAULTS, "postgres": listener})

    chosen = Ports(home).settle(set())

    assert chosen["postgres"] != listener
    assert is_free(chosen["postgres"])
    assert len(set(chosen.values())) == len(DEFAULTS)


def test_a_lost_port_is_replaced_unless_its_server_runs_or_airflow_relies_on_it(home: Home) -> None:
    first = Ports(home).settle(set())
    with socket.create_server(("127.0.0.1", first["kafka"])):
        assert Ports(home).settle({"kafka"}) == first
        with pytest.raises(StackError, match=f"port {first['kafka']} of kafka is now used by"):
            Ports(home).settle({"airflow"})
        second = Ports(home).settle({"postgres"})

    assert second["kafka"] != first["kafka"]
    assert second == first | {"kafka": second["kafka"]}
    with socket.create_server(("127.0.0.1", second["kafka"])):
        third = Ports(home).settle(set())
    assert third["kafka"] != second["kafka"]
    assert third == first | {"kafka": third["kafka"]}


def test_a_stack_that_was_never_started_has_no_ports(home: Home) -> None:
    with pytest.raises(StackError, match="epochline up"):
        Ports(home).get("postgres")


def test_a_damaged_file_is_reported(home: Home) -> None:
    home.ports.write_text("{")

    with pytest.raises(StackError, match="delete it"):
        Ports(home).known()


def test_a_user_whom_somebody_added_keeps_the_password_when_airflow_starts_again(tmp_path: Path) -> None:
    """Airflow's simple auth manager keeps a password for each of its users in one file."""
    stack = Stack(tmp_path / "home")
    stack.home.create()
    credentials.ensure(stack.home)
    stack.airflow.folder.mkdir()
    stack.airflow.write_password_file()
    passwords = json.loads(stack.airflow.password_file.read_text())
    stack.airflow.password_file.write_text(json.dumps({**passwords, "eve": "a password", "admin": "an old one"}))

    stack.airflow.write_password_file()

    assert json.loads(stack.airflow.password_file.read_text()) == {**passwords, "eve": "a password"}
    assert stack.airflow.password_file.stat().st_mode & 0o077 == 0


ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def daemon(home: Home) -> Iterator[Daemon]:
    daemon = Daemon(home, "thing", stop_signals=((signal.SIGTERM, 1), (signal.SIGKILL, 5)))
    yield daemon
    daemon.stop()


def start_server(daemon: Daemon, *command: str) -> int:
    return daemon.start(command or ("sleep", "60"), environment=ENVIRONMENT, cwd=Path("/"))


def test_a_server_runs_under_the_recorded_pid_until_it_is_stopped_and_is_not_called_crashed(daemon: Daemon) -> None:
    pid = start_server(daemon)
    assert daemon.pid == pid
    wait_until(lambda: psutil.Process(pid).name() == "sleep")
    assert os.getsid(pid) == pid

    assert daemon.stop()
    assert identity(pid) is None
    assert not daemon.crashed
    assert not daemon.stop()


def test_a_server_that_ignores_the_first_signal_gets_the_next(daemon: Daemon) -> None:
    pid = start_server(daemon, "sh", "-c", "trap '' TERM; echo set; while :; do sleep 0.1; done")
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
    pid = start_server(daemon, "sh", "-c", f"{detach}sleep 61 & echo $!; wait")
    wait_until(lambda: daemon.log.read_text().strip().isdigit())
    child = int(daemon.log.read_text())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: daemon.crashed)
    assert psutil.pid_exists(child)

    start_server(daemon)

    assert not daemon.crashed
    wait_until(lambda: not psutil.pid_exists(child) or identity(child) is None)


def test_a_server_that_ends_while_starting_is_reported_with_its_last_words(daemon: Daemon) -> None:
    start_server(daemon, "sh", "-c", "echo no licence; exit 1")

    with pytest.raises(StackError, match=r"thing ended while starting.*no licence"):
        daemon.wait_ready(lambda: "not yet", seconds=10)


def test_a_server_that_is_not_ready_in_time_is_left_running(daemon: Daemon) -> None:
    start_server(daemon)

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
    starter = python("-c", script, home, check=False)
    time.sleep(0.5)

    assert starter.returncode == -9
    assert daemon.log.read_text() == ""
