"""The tests' side of `one_step`: start a task in a process of its own, and learn what became of it."""

import signal
import tempfile
from pathlib import Path
from typing import Any, Self

from epochline.failpoints import NAMED, RECORD
from tests.commands import kafka_connection
from tests.crash.one_step import DIES, SharedTopic
from tests.processes.client import Forked, fork_server


class Step(Forked):
    """One task in its process, with a work folder of its own that is empty when the task starts and when it ends."""

    folder: Path

    def ended(self) -> Self:
        self.wait()
        assert list(self.folder.iterdir()) == []
        return self

    def go_on(self) -> Self:
        self.send_signal(signal.SIGCONT)
        return self

    @property
    def said(self) -> Any:
        assert "error" not in self.answer, self.answer
        return self.answer.get("said")

    @property
    def error(self) -> str | None:
        return self.answer.get("error")


class Case(SharedTopic):
    """A pipeline of one case, whose tasks may be taken in processes of their own; ``made_of`` are `SharedTopic`'s arguments."""

    def __init__(self, fired: Path, **made_of: Any) -> None:
        super().__init__(**made_of)
        self._fired, self._made_of = fired, made_of

    def start(self, step: str, run: str, *, failpoint: str = "", dies: str = "", trace: Path | None = None) -> Step:
        environment = {
            "AIRFLOW_CONN_EPOCHLINE_POSTGRES": self.dsn,
            "AIRFLOW_CONN_EPOCHLINE_KAFKA": kafka_connection(self.bootstrap),
            NAMED: failpoint,
            RECORD: str(self._fired),
            DIES: dies,
        }
        folder = Path(tempfile.mkdtemp(prefix="task-", dir=self._fired.parent))
        arguments = str(folder), self._made_of, step, run, trace and str(trace)
        process = fork_server.fork("tests.crash.one_step:take_step", *arguments, kind=Step, environment=environment)
        assert isinstance(process, Step)
        process.folder = folder
        return process

    def take(self, step: str, run: str, **options: Any) -> Step:
        return self.start(step, run, **options).ended()

    def stop_at(self, failpoint: str, step: str, run: str) -> Step:
        return self.start(step, run, failpoint=f"{failpoint}:stop").until_stopped()
