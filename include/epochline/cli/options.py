"""Arguments and options that several commands take, and what `--follow` means: show again until Ctrl-C."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from time import sleep
from typing import Annotated

import typer

from epochline.cli import INTERRUPTED, FollowingEnded, printing


def declared_pipelines(incomplete: str) -> list[str]:
    """The declared pipelines that begin so, for the completion of a shell: whatever fails completes nothing."""
    from epochline.config import discovery

    with suppress(Exception), redirect_stdout(sys.stderr):
        return [name for name in discovery.look().pipelines if name.startswith(incomplete)]
    return []


Name = Annotated[str, typer.Argument(help="The pipeline's name.", autocompletion=declared_pipelines)]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...", help="Pipelines; all declared ones if none is given.", autocompletion=declared_pipelines
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Show again every two seconds, until Ctrl-C.")]
OwnConnection = Annotated[
    str | None, typer.Option("--connection", help="Connection id of the database; the pipeline's own if not given.")
]

_EVERY_SECONDS = 2.0


def refresh(look: Callable[[], Callable[[], None]]) -> None:
    """Ask and print until Ctrl-C. A terminal shows the newest answer; a file or a pipe gets each one under its time.

    Args:
        look: asks the servers, and returns what prints the answer.

    Raises:
        FollowingEnded: Ctrl-C.
    """
    with until_interrupted():
        while True:
            show, out = look(), printing.console()
            if out.is_terminal:
                out.clear()
            else:
                printing.say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
            show()
            sleep(_EVERY_SECONDS)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """End a block that only shows, at Ctrl-C, without a word: raise `FollowingEnded`."""
    try:
        yield
    except KeyboardInterrupt:
        raise FollowingEnded(INTERRUPTED) from None


def refuse_with_follow(**options: object) -> None:
    """Refuse options, by name, that need one answer: all that are neither None nor False.

    Raises:
        typer.BadParameter: one of them is given.
    """
    for name, value in options.items():
        if value is not None and value is not False:
            raise typer.BadParameter(
                f"--follow shows answers until Ctrl-C, and --{name.replace('_', '-')} needs one; remove one of them",
                param_hint="--follow",
            )
