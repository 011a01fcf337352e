"""The command line."""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from epochline.cli.commands import Commands
from epochline.errors import EpochlineError, one_line

INTERNAL_ERROR = 70
INTERRUPTED = 130


class FollowingEnded(SystemExit):
    """Ctrl-C ended a command that only showed something. There is nothing to say about it."""


app = typer.Typer(
    name="epochline",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from epochline.declare.version import VERSION

        typer.echo(f"epochline {VERSION}")
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Exactly-once epochs from Kafka to PostgreSQL, kept in a ledger that you can query.

    Exit codes: 0 success; 1 refused or failed, see the message; 2 wrong use or an invalid declaration; 3 not healthy,
    further behind than --fail-above, or not fully checked by an audit; 70 an internal error; 130 interrupted.
    """


def main() -> None:
    """Run the command line. An expected error prints one paragraph and never a traceback."""
    root = logging.getLogger()
    if not any(isinstance(handler, LogFile) for handler in root.handlers):
        root.addHandler(LogFile())  # without a handler, Python prints warnings to standard error
    try:
        app(prog_name="epochline")
    except EpochlineError as error:
        from epochline.cli.printing import told

        _say(told(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        if ended.code == INTERRUPTED and not isinstance(ended, FollowingEnded):  # Typer turns Ctrl-C into this
            _say("interrupted")
        raise
    except Exception as error:
        from epochline.config.extras import extra_missing

        if (missing := extra_missing(error)) is not None:
            _say(f"error: {missing}")
            sys.exit(missing.exit_code)
        from epochline.cli.printing import explained

        if (explanation := explained(error)) is not None:
            _say(f"error: {explanation} The traceback is in {_keep_traceback()}.")
            sys.exit(1)
        _say(
            f"error: epochline failed unexpectedly ({type(error).__name__}: {one_line(error)})."
            f" The traceback is in {_keep_traceback()}; please report it."
        )
        sys.exit(INTERNAL_ERROR)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
            _say(record.getMessage())
            return
        from epochline.local.home import Home

        with suppress(OSError):
            logs = Home().logs
            if logs.is_dir():
                with (logs / "cli.log").open("a") as file:
                    file.write(f"{self.format(record)}\n")


def _keep_traceback() -> Path:
    import os
    import tempfile
    import traceback

    from epochline.local.home import Home

    home = Home()
    handle, name = tempfile.mkstemp(
        prefix="epochline-error-", suffix=".log", dir=home.logs if home.logs.is_dir() else None
    )
    with os.fdopen(handle, "w") as log:
        traceback.print_exc(file=log)
    return Path(name)
