"""`epochline publish`: show committed epochs in the sinks that follow the commit, as the task of that name does."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("publish")(publish)


def publish(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one object per epoch and sink.")] = False,
) -> None:
    """Show every committed epoch of PIPELINE in every topic, folder and other sink that does not show it yet.

    Epochs are shown in their order, whoever committed them; doing it again repeats nothing. A sink that is down keeps
    its epochs for the next time, and holds back no other sink. Exit code 0: every sink shows every committed epoch; 1:
    a sink is down or refuses, the message says which and why; 2: wrong use.
    """
    from dataclasses import asdict

    from epochline.cli import printing
    from epochline.cli.connections import ledger_of
    from epochline.config import discovery
    from epochline.coordinator import publish as publish_due

    declared = discovery.find(pipeline)
    published = publish_due(
        ledger_of(declared), declared, report=lambda one: None if as_json else printing.say(str(one))
    )
    if as_json:
        for one in published:
            printing.say(printing.as_json(asdict(one)))
    elif not published:
        printing.say(f"{pipeline}: every sink shows every committed epoch")
