"""The command `epochline demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LINES = 250_000


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("demo")(demo)


def demo(
    log: Annotated[
        Path | None, typer.Option(help="Your own access log; a deterministic one is generated if not given.")
    ] = None,
    lines: Annotated[int, typer.Option(min=1000, help="Length of the generated log, in lines.")] = LINES,
) -> None:
    """Feed an access log while Airflow runs epochs, kill a Spark driver, and compare the result with the log.

    Starts the stack if it does not run, and leaves it running. May be repeated, also after an interruption: each demo
    adds a log, and the verdict covers all logs. Exit code 0: the target holds exactly what was fed; 1: it does not, or
    a step failed; 2: the logs could not be compared, or wrong use; 130: interrupted.
    """
    from epochline.cli.demo.show import Show

    code = Show(log, lines).run()
    if code:
        raise typer.Exit(code)
