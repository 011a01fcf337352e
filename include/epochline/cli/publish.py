"""`epochline publish`: publish committed epochs to the sinks that follow the commit, as the task `publish` does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from epochline.cli import printing


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("publish")(publish)


def publish(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one object per epoch and sink.")] = False,
) -> None:
    """Show every committed epoch of PIPELINE in every topic, folder and other sink that does not show it yet.

    Epochs are shown in order, including other runs' epochs. A repeat shows nothing twice. Epochs of a sink that is down
    wait for the next call; other sinks go on. Exit code 0: every sink shows every committed epoch; 1: a sink is down or
    refuses, the message says which and why; 2: wrong use.
    """
    from epochline.cli.connections import adapters
    from epochline.config import discovery
    from epochline.coordinator import publish as publish_due

    declared = discovery.find(pipeline)
    published = publish_due(
        adapters().ledger(declared), declared, report=lambda one: None if as_json else printing.say(str(one))
    )
    if as_json:
        for one in published:
            printing.say(printing.as_json(asdict(one)))
    elif not published:
        printing.say(f"{pipeline}: every sink shows every committed epoch")
