"""Runs a Spark job on a Spark Connect server, in a process of its own that is the server's client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from airflow.sdk.exceptions import AirflowException

_SECONDS_TO_END = 5
_SHELLS = 128
"""A shell adds this to the number of the signal that ended a process."""


def how_it_ended(code: int) -> str:
    """Say how a driver ended, given its exit code, or its signal as Python or a shell reports it."""
    number = -code if code < 0 else code - _SHELLS
    try:
        return f"the driver of the Spark job was killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"the driver of the Spark job ended with exit code {code}"


class ServerJob:
    """One job at a time. The process is a child of the task, which ends with the task."""

    def __init__(self, log: Callable[[str], None]) -> None:
        """Describe a job; each line of its output goes to ``log``."""
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(self, program: str, arguments: Sequence[str]) -> None:
        """Run the job to its end, and copy its output to the task's log.

        Args:
            program: path of the main program, which reads its connection details from ``EPOCHLINE_CREDENTIALS``.
            arguments: its arguments.

        Raises:
            AirflowException: the job failed.
        """
        self._process = subprocess.Popen(
            [sys.executable, program, *arguments], env=os.environ.copy(), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with self._process as process:
            try:
                for line in process.stdout or ():
                    self._log(line.rstrip())
            except BaseException:
                # A time-out, for instance. The end of the block waits for the process.
                self.stop()
                raise
        if process.returncode != 0:
            raise AirflowException(how_it_ended(process.returncode))

    def stop(self) -> None:
        """End the job that runs; the server interrupts its query."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
        process.kill()
