"""A forked process of the tests is as independent as a fresh one: its own environment, paths, outputs and end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochline.failpoints import KILLED, NAMED, RECORD
from tests.processes.client import Forked, ForkServer


@pytest.fixture
def server() -> Iterator[ForkServer]:
    one = ForkServer()
    yield one
    one.end()


def ended(process: Forked) -> Forked:
    process.wait(30)
    return process


def test_a_process_has_its_own_environment_and_none_of_the_one_before(server: ForkServer) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OF_BOTH", "here")
        first = server.fork("os:getenv", "OF_ONE", environment={"OF_ONE": "1"})

    assert ended(first).answer == {"said": "1"}
    for name in ("OF_ONE", "OF_BOTH"):
        assert ended(server.fork("os:getenv", name)).answer == {"said": None}


def test_a_process_imports_from_folders_of_its_own(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "of_one_test.py").touch()

    assert ended(server.fork("builtins:exec", "import of_one_test", path=[tmp_path])).answer == {"said": None}
    assert ended(server.fork("builtins:exec", "import of_one_test")).answer["error"] == "ModuleNotFoundError"


def test_a_process_writes_to_outputs_of_its_own(server: ForkServer) -> None:
    assert server.fork("builtins:print", "said").communicate(30) == ("said\n", "")
    process = server.fork("json:loads", "no document")

    out, err = process.communicate(30)

    assert (process.returncode, out, process.answer["error"]) == (1, "", "JSONDecodeError")
    assert err.startswith("Traceback")


def test_a_process_is_killed_at_its_failpoint_and_the_next_one_is_not(server: ForkServer, tmp_path: Path) -> None:
    armed = {NAMED: "write.copy:exit", RECORD: str(tmp_path / "fired")}

    ends = [ended(server.fork("epochline.failpoints:failpoint", "write.copy", environment=one)) for one in (armed, {})]

    assert [(one.returncode, one.answer) for one in ends] == [(KILLED, {}), (0, {"said": None})]
    assert (tmp_path / "fired").read_text() == "write.copy\n"


def test_a_process_stops_and_goes_on_while_others_run(server: ForkServer) -> None:
    process = server.fork("epochline.failpoints:failpoint", "write.copy", environment={NAMED: "write.copy:stop"})
    process.until_stopped(30)
    assert ended(server.fork("builtins:len", [1, 2])).answer == {"said": 2}
    assert process.poll() is None

    process.send_signal(signal.SIGCONT)

    assert process.wait(30) == 0


def test_a_process_that_ends_instead_of_stopping_is_said_with_its_error(server: ForkServer) -> None:
    with pytest.raises(AssertionError, match=r"ended with 1 instead of stopping(.|\n)*JSONDecodeError"):
        server.fork("json:loads", "no document").until_stopped(30)


def test_a_killed_process_has_the_signal_as_its_exit_code_and_none_outlasts_the_server(server: ForkServer) -> None:
    killed, left = server.fork("time:sleep", 60), server.fork("time:sleep", 60)

    killed.kill()
    assert killed.wait(30) == -signal.SIGKILL
    assert killed.poll() == -signal.SIGKILL

    server.end()
    with pytest.raises(ProcessLookupError):
        os.kill(left.pid, 0)


@pytest.mark.parametrize(
    ("opened", "said"),
    [
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "2 threads"),
        ("import socket; opened = socket.socket()", "has a connection"),
    ],
    ids=["a thread", "a connection"],
)
def test_nothing_is_forked_with_a_thread_or_a_connection(server: ForkServer, opened: str, said: str) -> None:
    check = "from tests.processes.server import check_nothing_is_inherited as check; check()"

    answer = ended(server.fork("builtins:exec", f"{opened}; {check}")).answer

    assert answer["error"] == "AssertionError"
    assert said in answer["message"]
