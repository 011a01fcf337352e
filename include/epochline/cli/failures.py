"""How a command says that it failed: an error of ours, one of the environment, and one of several names."""

import os
import shlex
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

import psycopg2
import typer

from epochline.cli import printing
from epochline.errors import EpochlineError, PipelineStandsError, one_line
from epochline.postgres.queries.driver_errors import explained as explained_by_postgres

_REACH_SPARK = ("JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS",
                "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "SPARK_DAEMON_JAVA_OPTS", "TMPDIR", "PYTHONPATH")  # fmt: skip
"""Variables that change how Spark's driver starts; a value may be secret, so a message shows the names alone."""

_LOG_LINES = 4


def told(error: EpochlineError) -> str:
    """A line for each cause. None ends with the command that was just run: nothing is better the second time."""
    said = error.said if isinstance(error, PipelineStandsError) and _is_running(error.command) else str(error)
    causes = dict.fromkeys([said, *getattr(error, "__notes__", ())])
    return "\n".join(f"error: {one_line(cause)}" for cause in causes)


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


def explained(error: Exception) -> str | None:
    """What happened and what to do, for an error that no part of Epochline raises; None if nothing explains it."""
    if isinstance(error, ImportError):
        return _not_imported(error)
    if isinstance(error, psycopg2.Error):
        return str(explained_by_postgres(error))
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}. The machine refused it; correct that and repeat the command."
    return None


def not_started(error: Exception, log: Path) -> str:
    """Why Spark's driver did not start: the last lines of its log, and the variables that it was given."""
    given = ", ".join(name for name in _REACH_SPARK if os.environ.get(name))
    text = log.read_text(errors="replace") if log.exists() else ""
    said = " | ".join([line.strip() for line in text.splitlines() if line.strip()][-_LOG_LINES:])
    first = next(iter(str(error).strip().splitlines()), "")
    return f"Spark did not start ({type(error).__name__}: {first}). Its log {log} ends with: {said or 'nothing'}." + (
        f" These variables of the environment reach it: {given}. Correct or unset them." if given else ""
    )


def _not_imported(error: ImportError) -> str:
    name = (error.name or "").partition(".")[0]
    module = sys.modules.get(name)
    places = [found] if (found := getattr(module, "__file__", None)) else list(getattr(module, "__path__", ()))
    if not places:
        return f"{error}. The package is not installed in {sys.prefix}."
    installed = Path(sysconfig.get_path("purelib"))
    if installed in Path(places[0]).parents:
        return f"{error}. The installed package {places[0]} is incomplete or of another version: install it again."
    return (
        f"{error}. Python takes {name} from {places[0]}, which hides the installed package. Rename it, or take its"
        f" folder out of PYTHONPATH{f' ({path})' if (path := os.environ.get('PYTHONPATH')) else ''}."
    )
