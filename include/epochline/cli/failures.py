"""How a command says that it failed, and how one that takes several names goes on after a failure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable

import typer

from epochline.cli import printing
from epochline.errors import EpochlineError, PipelineStandsError


def told(error: EpochlineError) -> str:
    """A line for each cause. None ends with the command that was just run: nothing is better the second time."""
    said = error.said if isinstance(error, PipelineStandsError) and _is_running(error.command) else str(error)
    causes = dict.fromkeys([said, *getattr(error, "__notes__", ())])
    return "\n".join(f"error: {' '.join(one.split())}" for one in causes)


def _is_running(command: str | None) -> bool:
    name, *arguments = shlex.split(command or "") or [""]
    return sys.argv[1:2] == [name] and set(arguments) - {"…"} <= set(sys.argv[2:])


def each(names: Iterable[str], act: Callable[[str], object]) -> None:
    """Call ``act`` with each name; an error of one is printed and hides no other.

    Raises:
        EpochlineError: the only name failed.
        typer.Exit: one of several names failed; the code is the highest one.
    """
    wanted, worst = list(dict.fromkeys(names)), 0
    for name in wanted:
        try:
            act(name)
        except EpochlineError as error:
            if len(wanted) == 1:
                raise
            printing.progress(told(error))
            worst = max(worst, error.exit_code)
    if worst:
        raise typer.Exit(worst)
