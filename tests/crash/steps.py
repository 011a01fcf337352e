"""The tests' side of `one_step`: start a task in a process of its own, and learn what became of it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from epochline.failpoints.named import NAMED, RECORD
from tests.commands import kafka_connection
from tests.crash.one_step import SharedTopic
from tests.processes.client import ROOT, Forked, fork_server

__all__ = ["ROOT", "Step", "StepServer"]


class Step(Forked):
    """One task in its process."""

    @property
    def exit(self) -> int | None:
        return self.returncode

    def ended(self) -> Step:
        """Wait for the end of the process."""
        self.wait()
        return self

    def go_on(self) -> Step:
        self.send_signal(signal.SIGCONT)
        return self

    @property
    def said(self) -> Any:
        assert "error" not in self.answer, self.answer
        return self.answer.get("said")

    @property
    def error(self) -> str | None:
        return self.answer.get("error")


class StepServer:
    """Starts tasks; what fired is recorded."""

    def __init__(self, record: Path) -> None:
        self._record = record

    def start(
        self, step: str, line: SharedTopic, run: str, *, failpoint: str = "", trace: Path | None = None, **options: Any
    ) -> Step:
        """Start a task; give what it is at."""
        environment = {
            "AIRFLOW_CONN_EPOCHLINE_POSTGRES": line.dsn,
            "AIRFLOW_CONN_EPOCHLINE_KAFKA": kafka_connection(line.bootstrap),
            NAMED: failpoint,
            RECORD: str(self._record),
        }
        made_of = {
            "dsn": line.dsn, "bootstrap": line.bootstrap, "topic": line.topic, "name": line.name,
            "records": line.records_file, "limit": line.pipeline.source.records_per_epoch, "kind": line.kind,
            "lock_timeout": line.pipeline.lock_timeout.total_seconds(),
        }  # fmt: skip
        return fork_server.fork(
            "tests.crash.one_step:take_step", made_of, step, run,
            kind=Step, environment=environment, trace=str(trace) if trace else None, options=options,
        )  # fmt: skip

    def run(self, step: str, line: SharedTopic, run: str, **given: Any) -> Step:
        """A task from its start to its end."""
        return self.start(step, line, run, **given).ended()
