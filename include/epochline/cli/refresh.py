"""What `--follow` means: show again every few seconds, until Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from time import sleep

import typer

from epochline.cli import INTERRUPTED, FollowingEnded, printing

_EVERY_SECONDS = 2.0

Look = Callable[[], Callable[[], None]]
"""Asks the servers, and returns what prints the answer."""


def refresh(look: Look) -> None:
    """Ask and print until Ctrl-C. A terminal shows the newest answer; a file or a pipe gets each one under its time.

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
    """End a block that only shows, at Ctrl-C, without a word.

    Raises:
        FollowingEnded: Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise FollowingEnded(INTERRUPTED) from None


def refuse_with_follow(**given: object) -> None:
    """Refuse options, by name, that need one answer: all that are neither None nor False.

    Raises:
        typer.BadParameter: one of them is given.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise typer.BadParameter(
                f"--follow shows answers until Ctrl-C, and --{name.replace('_', '-')} needs one; remove one of them",
                param_hint="--follow",
            )
