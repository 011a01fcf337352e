"""Kill a Spark driver while its epoch is being staged.

The driver of an attempt is the process that Airflow's task started: the client of the Spark server. Once a part of the
attempt is committed, and as long as its driver has written no manifest, the driver gets SIGKILL. What the server's
tasks still stage afterwards is refused or discarded.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from epochline.cli.database import Session, ask

_LOOK_EVERY_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """A killed driver: its process, its attempt, and what was staged at that moment."""

    pid: int
    epoch_id: int
    attempt: int
    attempt_id: int
    planned: int
    staged: Sequence[dict[str, Any]]


def kill_while_staging(
    ledger: Session, home: str, pipeline: str, give_up: Callable[[], bool], missed: Callable[[int], None]
) -> Caught | None:
    """Wait for an attempt, and kill its driver when parts of it are committed and it is not yet sealed.

    Args:
        ledger: queried many times a second.
        home: of the stack; drivers of another stack are left alone.
        pipeline: its name.
        give_up: whether to stop waiting, and return None; called while no attempt runs.
        missed: called with the epoch's id when a driver was too fast.
    """
    tried: set[int] = set()
    while True:
        running = [row for row in ask(ledger, "running_attempt", pipeline=pipeline) if row["attempt_id"] not in tried]
        if running:
            (attempt, *_) = running
            tried.add(attempt["attempt_id"])
            driver = _find_driver(ledger, home, pipeline, attempt)
            caught = None if driver is None else _kill(ledger, driver, attempt)
            if caught is not None:
                return caught
            missed(attempt["epoch_id"])
        elif give_up():
            return None
        else:
            time.sleep(0.1)


def _find_driver(ledger: Session, home: str, pipeline: str, attempt: dict[str, Any]) -> psutil.Process | None:
    arguments = ["--pipeline", pipeline, "--epoch", str(attempt["epoch_id"]), "--attempt", str(attempt["attempt"])]
    while ask(ledger, "attempt_is_open", attempt_id=attempt["attempt_id"])[0]["open"]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                if command[-len(arguments) :] == arguments and process.environ().get("EPOCHLINE_HOME") == home:
                    return process
        time.sleep(0.05)
    return None


def _kill(ledger: Session, driver: psutil.Process, attempt: dict[str, Any]) -> Caught | None:
    looks = 0
    while not ask(ledger, "any_part", attempt_id=attempt["attempt_id"]):
        looks += 1
        if looks % 50 == 0:
            (row,) = ask(ledger, "attempt_is_open", attempt_id=attempt["attempt_id"])
            if not (row["open"] and driver.is_running()):
                return None
        time.sleep(_LOOK_EVERY_SECONDS)
    with contextlib.suppress(psutil.NoSuchProcess):
        driver.kill()
        driver.wait(timeout=30)
    (manifest,) = ask(ledger, "manifest_is_written", attempt_id=attempt["attempt_id"])
    if manifest["written"]:
        return None
    staged = ask(ledger, "staged_by_attempt", attempt_id=attempt["attempt_id"])
    names = ("epoch_id", "attempt", "attempt_id", "planned")
    return Caught(pid=driver.pid, staged=staged, **{name: attempt[name] for name in names})
