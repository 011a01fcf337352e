"""Where log lines of a command go: those of client libraries not to the terminal, which gets what Epochline says."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress


class LogFile(logging.Handler):
    """Warnings and errors: Epochline's own go to standard error, others to ``cli.log`` of the stack's logs.

    Where no stack was made, those of others are dropped: what a client could not do is raised as well.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Open the file for this line alone: a command rarely writes one, and several may run at a time."""
        if record.name.partition(".")[0] == "epochline":
            print(record.getMessage(), file=sys.stderr)
            return
        from epochline.local.home import Home

        with suppress(OSError):
            logs = Home().logs
            if logs.is_dir():
                with (logs / "cli.log").open("a") as file:
                    file.write(f"{self.format(record)}\n")


def keep_off_the_terminal() -> None:
    """Give the root logger this handler. Without one, Python prints warnings to standard error. Repeatable."""
    root = logging.getLogger()
    if not any(isinstance(one, LogFile) for one in root.handlers):
        root.addHandler(LogFile())
