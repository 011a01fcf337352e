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


def test_a_process_is_killed_at_its_failpoint_and_the_next_one_is_not(server: ForkServer, tmp_path: Path) -> None:
    armed = {NAMED: "write.copy:exit", RECORD: str(tmp_path / "fired")}

    ends = [ended(server.fork("epochline.failpoints:failpoint", "write.copy", environment=one)) for one in (armed, {})]

    assert [(one.returncode, one.answer) for one in ends] == [(KILLED, {}), (0, {"said": None})]
    assert (tmp_path / "fired").read_text() == "write.copy\n"


def test_a_killed_process_has_the_signal_as_its_exit_code_and_none_outlasts_the_server(server: ForkServer) -> None:
    killed, left = server.fork("time:sleep", 60), server.fork("time:sleep", 60)

    killed.kill()
    assert killed.wait(30) == -signal.SIGKILL
    assert killed.poll() == -signal.SIGKILL

    server.end()
    with pytest.raises(ProcessLookupError):
        os.kill(left.pid, 0)
