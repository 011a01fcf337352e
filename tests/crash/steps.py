"""The tests' side of `one_step`: start a task in a process of its own, and learn what became of it."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochline.failpoints.named import NAMED, RECORD
from tests.crash.one_step import SharedTopic

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0


@dataclass
class Step:
    """One task in its process."""

    server: StepServer
    number: int
    pid: int = 0
    stopped: bool = False
    exit: int | None = None
    answer: dict[str, Any] = field(default_factory=dict)

    def ended(self) -> Step:
        """Wait for the end of the process."""
        self.server.listen_until(lambda: self.exit is not None, f"step {self.number} ends")
        return self

    def until_stopped(self) -> Step:
        """Wait until it stopped itself at a failpoint."""
        self.server.listen_until(lambda: self.stopped or self.exit is not None, f"step {self.number} stops")
        assert self.exit is None, f"it ended with {self.exit} instead of stopping: {self.answer}"
        return self

    def go_on(self) -> Step:
        self.stopped = False
        os.kill(self.pid, signal.SIGCONT)
        return self

    @property
    def said(self) -> Any:
        assert "error" not in self.answer, self.answer
        return self.answer.get("said")

    @property
    def error(self) -> str | None:
        return self.answer.get("error")


class StepServer:
    """A warm interpreter that forks."""

    def __init__(self, process: subprocess.Popen[bytes], record: Path) -> None:
        self._process = process
        self._record = record
        self._numbers = itertools.count(1)
        self._steps: dict[int, Step] = {}
        self._pending = b""

    @classmethod
    @contextmanager
    def running(cls, folder: Path, record: Path) -> Iterator[StepServer]:
        """Start it; its processes' stderr goes to a file in the folder, what fired to the record."""
        paths = [str(ROOT / name) for name in ("include", "spark_jobs", "tests/functions", ".")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with (folder / "steps.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.one_step"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=ROOT,
            )  # fmt: skip
        with process:
            try:
                yield cls(process, record)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(30)

    def start(
        self, step: str, line: SharedTopic, run: str, *, failpoint: str = "", trace: Path | None = None, **options: Any
    ) -> Step:
        """Start a task; give what it is at."""
        one = Step(self, next(self._numbers))
        self._steps[one.number] = one
        environment = {
            "AIRFLOW_CONN_EPOCHLINE_POSTGRES": line.dsn,
            "AIRFLOW_CONN_EPOCHLINE_KAFKA": json.dumps({"extra": {"bootstrap.servers": line.bootstrap}}),
            NAMED: failpoint,
            RECORD: str(self._record),
        }
        request = {
            "id": one.number, "step": step, "run": run, "options": options, "environment": environment,
            "line": {
                "dsn": line.dsn, "bootstrap": line.bootstrap, "topic": line.topic, "name": line.name,
                "records": line.records_file, "limit": line.pipeline.source.records_per_epoch, "kind": line.kind,
                "lock_timeout": line.pipeline.lock_timeout.total_seconds(),
            },
        }  # fmt: skip
        if trace is not None:
            request["trace"] = str(trace)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(request)}\n".encode())
        self._process.stdin.flush()
        self.listen_until(lambda: one.pid != 0, f"step {one.number} starts")
        return one

    def run(self, step: str, line: SharedTopic, run: str, **given: Any) -> Step:
        """A task from its start to its end."""
        return self.start(step, line, run, **given).ended()

    def listen_until(self, happened: Any, what: str) -> None:
        assert self._process.stdout is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not happened():
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"within {PATIENCE_SECONDS:.0f} s it did not happen that {what}"
            given = os.read(self._process.stdout.fileno(), 1 << 16)
            assert given, f"the server of steps ended before {what}"
            *lines, self._pending = (self._pending + given).split(b"\n")
            for text in lines:
                self._hear(json.loads(text))

    def _hear(self, event: dict[str, Any]) -> None:
        step = self._steps[event.pop("id")]
        step.pid = event.get("pid", step.pid)
        step.exit = event.get("exit", step.exit)
        step.stopped = event.get("stopped", step.stopped)
        step.answer.update({name: event[name] for name in ("said", "error", "message", "retryable") if name in event})
