"""Catch a Spark driver between two parts, and kill it.

The driver's JVM (``SparkSubmit``) is the process that Airflow's task started. The JVM and its children are stopped with
SIGSTOP, and the ledger is asked. If some parts are committed and some are not, the JVM gets SIGKILL; otherwise all go
on. The driver's Python process is a child of the JVM and ends when the JVM has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from epochline.cli.database import Session, ask

_LAUNCHER = "org.apache.spark.launcher.Main"
_LOOK_EVERY_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """A killed driver: its attempt, and what was staged at that moment."""

    epoch_id: int
    attempt: int
    attempt_id: int
    run_id: str
    pid: int
    planned: int
    received: int
    staged: Sequence[dict[str, Any]]


def kill_between_parts(
    ledger: Session, home: str, pipeline: str, give_up: Callable[[], bool], missed: Callable[[int], None]
) -> Caught | None:
    """Wait for an attempt, and kill its driver when some of its parts are committed and some are not.

    Args:
        ledger: an open session, queried many times a second.
        home: of the stack; drivers of another stack are left alone.
        pipeline: name of the pipeline.
        give_up: whether to stop waiting; called while no attempt runs.
        missed: called with the epoch's id when a driver was too fast.

    Returns:
        The killed driver; None if ``give_up`` said so.
    """
    seen: set[int] = set()
    while True:
        running = [one for one in ask(ledger, "running_attempt", pipeline=pipeline) if one["attempt_id"] not in seen]
        if not running:
            if give_up():
                return None
            time.sleep(0.1)
            continue
        attempt = running[0]
        seen.add(attempt["attempt_id"])
        driver = _find_driver(ledger, home, pipeline, attempt)
        caught = None if driver is None else _kill(ledger, driver, attempt)
        if caught is not None:
            return caught
        missed(attempt["epoch_id"])


def _find_driver(ledger: Session, home: str, pipeline: str, attempt: dict[str, Any]) -> psutil.Process | None:
    wanted = ["--pipeline", pipeline, "--epoch", str(attempt["epoch_id"]), "--attempt", str(attempt["attempt"])]
    while _is_open(ledger, attempt):
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if command[-len(wanted) :] != wanted or process.name() != "java" or _LAUNCHER in command:
                    continue
                if process.environ().get("EPOCHLINE_HOME") == home:
                    return process
        time.sleep(0.2)
    return None


def _is_open(ledger: Session, attempt: dict[str, Any]) -> bool:
    (found,) = ask(ledger, "attempt_is_open", attempt_id=attempt["attempt_id"])
    return bool(found["open"])


def _kill(ledger: Session, driver: psutil.Process, attempt: dict[str, Any]) -> Caught | None:
    looks = 0
    while not ask(ledger, "any_part", attempt_id=attempt["attempt_id"]):
        looks += 1
        if looks % 50 == 0 and not (_is_open(ledger, attempt) and driver.is_running()):
            return None
        time.sleep(_LOOK_EVERY_SECONDS)
    frozen = _freeze(driver)
    try:
        staged = _settled(ledger, attempt["attempt_id"])
        received = max(one["received"] or 0 for one in staged)
        if not _is_open(ledger, attempt) or not 0 < received < attempt["planned"]:
            return None
        driver.kill()
        driver.wait(timeout=30)
    finally:
        for process in frozen:
            _send(process, signal.SIGCONT)
    return Caught(
        epoch_id=attempt["epoch_id"],
        attempt=attempt["attempt"],
        attempt_id=attempt["attempt_id"],
        run_id=attempt["run_id"],
        pid=driver.pid,
        planned=attempt["planned"],
        received=received,
        staged=staged,
    )


def _freeze(driver: psutil.Process) -> list[psutil.Process]:
    """Stop the JVM, then its children: the driver's Python process and the workers."""
    _send(driver, signal.SIGSTOP)
    with contextlib.suppress(psutil.Error):
        children = driver.children(recursive=True)
        for child in children:
            _send(child, signal.SIGSTOP)
        return [driver, *children]
    return [driver]


def _settled(ledger: Session, attempt_id: int) -> list[dict[str, Any]]:
    """What is staged, once everything that was on its way to the server has arrived."""
    before = ask(ledger, "staged_by_attempt", attempt_id=attempt_id)
    while True:
        time.sleep(0.2)
        now = ask(ledger, "staged_by_attempt", attempt_id=attempt_id)
        if now == before:
            return now
        before = now


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        if process.is_running():
            os.kill(process.pid, number)
