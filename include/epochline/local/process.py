"""Servers that outlive the command that starts them, with pid files that survive the reuse of a pid."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from epochline.errors import StackError
from epochline.local.home import Home, wait_until, write_private

PART_VARIABLE = "EPOCHLINE_STACK_PART"

# The server starts only after its pid file is written: the shell waits for a line on its standard input, and ends if
# the starter dies before it sends the line. So `down` knows every server that runs.
_LAUNCH = 'read -r go || exit 125; exec "$@" </dev/null'

# What a dead server left behind. A task of Airflow ends its Spark job and tells the API server that it failed; what is
# killed before is noticed by its missing heartbeats alone, a minute later.
_SECONDS_TO_END = 15

# Running children of this process. They are kept to be reaped when they end, because a zombie keeps its pid, and
# because the garbage collector would warn about their handles.
_started: dict[int, subprocess.Popen[bytes]] = {}


def identity(pid: int) -> str | None:
    """An id that distinguishes a process from all others with the same pid; None if the process is gone.

    On Linux it is the boot id and the kernel's start tick, because the wall clock may be changed.
    """
    child = _started.get(pid)
    if child is not None and child.poll() is not None:
        _started.pop(pid, None)
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists():
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return f"{boot}/{stat.read_text().rpartition(')')[2].split()[19]}"
        return str(process.create_time())
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None


class Daemon:
    """One server process with a pid file and a log under the home.

    Args:
        home: folder of the stack to which the server belongs.
        name: name of the server, its pid file and its log.
        stop_signals: the signals that end the server, and how many seconds to wait after each.
        owns: returns True for a process of this server that has its own session and overwrote its environment.
        idle: returns True for a leftover that does nothing, and so may be killed without a wait for its end.
    """

    def __init__(
        self,
        home: Home,
        name: str,
        *,
        stop_signals: Sequence[tuple[signal.Signals, float]],
        owns: Callable[[psutil.Process], bool] = lambda _process: False,
        idle: Callable[[psutil.Process], bool] = lambda _process: False,
    ) -> None:
        self.name = name
        self._owns = owns
        self._idle = idle
        self.log = home.logs / f"{name}.log"
        self._pid_file = home.run / f"{name}.json"
        self._mark = f"{home.root}:{name}"
        self._stop_signals = stop_signals

    @property
    def pid(self) -> int | None:
        """The pid while the server is alive, else None."""
        record = self._record()
        return record["pid"] if record is not None and identity(record["pid"]) == record["identity"] else None

    @property
    def crashed(self) -> bool:
        """Whether the server ended without `stop`."""
        return self._record() is not None and self.pid is None

    @property
    def started_at(self) -> float | None:
        """The time of the last start, in seconds since 1970; None if the server is stopped."""
        record = self._record()
        return None if record is None else record["started_at"]

    def start(self, command: Sequence[str], *, environment: Mapping[str, str], cwd: Path) -> int:
        """Start the server, detached from this terminal, and return its pid. First end what a crashed server left.

        The environment is the server's whole environment; nothing is inherited.

        Raises:
            StackError: the shell that starts the command could not be started. `wait_ready` reports a missing program.
        """
        self.end_leftovers()
        with self.log.open("ab") as log:
            try:
                child = subprocess.Popen(
                    ["/bin/sh", "-c", _LAUNCH, self.name, *command],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**environment, PART_VARIABLE: self._mark},
                    cwd=cwd,
                    start_new_session=True,
                )
            except OSError as error:
                raise StackError(f"{self.name} could not be started: {error}") from error
        _started[child.pid] = child
        record = {"pid": child.pid, "identity": identity(child.pid), "started_at": time.time()}
        write_private(self._pid_file, json.dumps({**record, "command": Path(command[0]).name}) + "\n")
        if child.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended already; `wait_ready` reports it with the log
                child.stdin.write(b"go\n")
                child.stdin.close()
        return child.pid

    def stop(self) -> bool:
        """End the server and its child processes, and no others. Returns whether it was running.

        Raises `StackError` if the server did not end after the last signal.
        """
        pid = self.pid
        if pid is not None:
            for number, patience in self._stop_signals:
                _send(pid, number)
                if wait_until(lambda: self.pid is None, patience, 0.05):
                    break
            else:
                raise StackError(f"{self.name} (pid {pid}) did not end after {number.name}. Repeat `epochline down`.")
        self.end_leftovers()
        self._pid_file.unlink(missing_ok=True)
        return pid is not None

    def ask_to_stop(self) -> None:
        """Send the first stop signal without waiting. Call `stop` afterwards."""
        pid = self.pid
        if pid is not None:
            _send(pid, self._stop_signals[0][0])

    def end_leftovers(self) -> None:
        """End processes that a dead server left behind. Does nothing while the server runs.

        They are found by its session, by the mark in their environment, or by ``owns``.
        """
        if self.pid is not None:
            return
        leftovers = self._leftovers()
        for process in leftovers:
            with suppress(psutil.Error):
                process.terminate()
        wait_until(lambda: not any(map(self._is_busy, leftovers)), _SECONDS_TO_END)
        for process in leftovers:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(leftovers, timeout=5)

    def wait_ready(self, ready: Callable[[], str | None], seconds: float) -> None:
        """Wait until ``ready`` returns None; until then it returns what is missing.

        Raises:
            StackError: the process ended, or it is not ready in time. The message ends with its last log lines.
        """
        deadline = time.monotonic() + seconds
        while True:
            # Ask first: if the server has ended, another one on its port has answered.
            missing = ready()
            if self.pid is None:
                raise StackError(f"{self.name} ended while starting. {self.log_tail()}")
            if missing is None:
                return
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.name} is not ready after {seconds:.0f} s: {missing}. It still runs; run `epochline up` to"
                    f" wait again. {self.log_tail()}"
                )
            time.sleep(0.2)

    def log_tail(self, lines: int = 4) -> str:
        """The path of the log and its last lines, on one line."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - 4000))
                text = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            text = []
        return f"The log {self.log} ends with: {' | '.join(text[-lines:]) or 'nothing'}"

    def _record(self) -> dict[str, Any] | None:
        try:
            record = json.loads(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and {"pid", "identity", "started_at"} <= set(record) else None

    def _is_busy(self, process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE and not self._idle(process)
        return False

    def _leftovers(self) -> list[psutil.Process]:
        record = self._record()
        # A session's id is the pid of its leader, and no new process gets this pid while the session has processes. If
        # a process has this pid now, nothing is left of the dead server's session: this session is somebody else's.
        leader = None if record is None else record["pid"]
        reused = leader is not None and identity(leader) is not None
        me = psutil.Process()
        # A command that runs inside a part of the stack, such as an Airflow task, inherits the mark.
        spared = {me.pid, *(parent.pid for parent in me.parents())}
        leftovers = []
        for process in psutil.process_iter():
            if process.pid in spared:
                continue
            with suppress(psutil.Error, OSError):
                same_session = leader is not None and not reused and os.getsid(process.pid) == leader
                if same_session or self._owns(process) or process.environ().get(PART_VARIABLE) == self._mark:
                    leftovers.append(process)
        return leftovers


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
