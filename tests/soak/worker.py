"""A scheduler of one pipeline's runs in a process of its own: each task is a child process, tried again when it dies.

It behaves as Airflow does where that matters: a task that does not answer is started a second time while the first may
still be there, a failed run is torn down, a cleared run goes through its tasks again under its own name.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from epochline.errors import EpochlineError
from epochline.protocol.epoch import Interval
from tests.soak.faults import PHASES
from tests.soak.pipelines import declared
from tests.soak.tasks import Servers, Tasks

IDLE = "idle"
_PHASES = (IDLE, *PHASES, "abort")
_TRIES = 3
_ANSWER_SECONDS = 12.0
_DONE, _SKIPPED, _RETRY, _REFUSED = 0, 10, 11, 12

Order = tuple[str, Any]
"""``trigger``, ``clear`` with the run, or ``backfill`` with the interval."""


@dataclass(slots=True, kw_only=True)
class Seat:
    """What the soak and one worker share: the phase it is in, its task's pid, and its orders."""

    pipeline: str
    by_schedule: bool
    phase: Synchronized[int]
    pid: Synchronized[int]
    stopping: Synchronized[int]
    orders: Queue[Order]
    ended: Queue[tuple[str, str]]
    """Pipelines and runs."""

    @property
    def now(self) -> str:
        return _PHASES[self.phase.value]


def work(seat: Seat, servers: Servers, log_path: str) -> None:
    """Run epochs until the soak stops: by itself, or one for each order."""
    sys.stdout = sys.stderr = open(log_path, "a", buffering=1)  # noqa: SIM115 - for as long as the process lives
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number = 0
    while not seat.stopping.value:
        try:
            kind, value = seat.orders.get(timeout=0.05 if seat.by_schedule else 0.5)
        except queue.Empty:
            if not seat.by_schedule:
                continue
            kind, value = "trigger", None
        number += 1
        run_id = value if kind == "clear" else f"{kind}__{'s' if seat.by_schedule else 'm'}{number}"
        outcome = _run(seat, servers, run_id, value if kind == "backfill" else None)
        if outcome != "skipped":
            print(f"{datetime.now(UTC):%H:%M:%S.%f} {seat.pipeline} {run_id} {outcome}")
            seat.ended.put((seat.pipeline, run_id))
        elif seat.by_schedule:
            time.sleep(0.1)


def _run(seat: Seat, servers: Servers, run_id: str, interval: Interval | None) -> str:
    read, write = os.pipe()
    try:
        code = _tried(seat, lambda tasks: _plan(tasks, interval, write), run_id, servers)
        if code == _SKIPPED:
            return "skipped" if _tried(seat, Tasks.take_publish, run_id, servers) == _DONE else "unpublished"
        if code != _DONE:
            return "failed"
        epoch_id = int(os.read(read, 20))
    finally:
        os.close(read)
        os.close(write)
    steps: list[Callable[[Tasks], None]] = [lambda t: t.take_pre_commit(epoch_id), lambda t: t.take_commit(epoch_id)]
    for step in steps:
        if _tried(seat, step, run_id, servers) != _DONE:
            _tried(seat, lambda t: t.take_abort(epoch_id), run_id, servers)
            return "failed"
    return "success" if _tried(seat, Tasks.take_publish, run_id, servers) == _DONE else "unpublished"


def _plan(tasks: Tasks, interval: Interval | None, write: int) -> None:
    epoch_id = tasks.take_plan(interval)
    if epoch_id is None:
        os._exit(_SKIPPED)
    os.write(write, str(epoch_id).encode())


def _tried(seat: Seat, task: Callable[[Tasks], None], run_id: str, servers: Servers) -> int:
    code = _in_child(seat, task, run_id, servers)
    for _ in range(_TRIES - 1):
        if code == _RETRY:
            time.sleep(0.3)
            code = _in_child(seat, task, run_id, servers)
    return code


def _in_child(seat: Seat, task: Callable[[Tasks], None], run_id: str, servers: Servers) -> int:
    pid = os.fork()
    if pid == 0:
        seat.pid.value = os.getpid()
        _child(seat, task, run_id, servers)
    deadline = time.monotonic() + _ANSWER_SECONDS
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code in (_DONE, _SKIPPED, _REFUSED) else _RETRY
            time.sleep(0.002)
        # No answer: the next try starts while this one may still be there, and wakes up some day.
        print(f"{seat.pipeline} {run_id}: task {pid} does not answer in {_PHASES[seat.phase.value]}")
        return _RETRY
    finally:
        seat.phase.value = 0
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _child(seat: Seat, task: Callable[[Tasks], None], run_id: str, servers: Servers) -> None:
    def enter(phase: str) -> None:
        if seat.pid.value == os.getpid():  # A zombie that woke up is not the task at work.
            seat.phase.value = _PHASES.index(phase)

    try:
        task(Tasks(declared(seat.pipeline), run_id, servers, enter))
    except BaseException as error:
        print(f"{seat.pipeline} {run_id}: {type(error).__name__}: {error}")
        os._exit(_REFUSED if isinstance(error, EpochlineError) and not error.retryable else _RETRY)
    os._exit(_DONE)
