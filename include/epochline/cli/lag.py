"""`epochline lag`: the lag of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from epochline.cli import printing
from epochline.cli.servers import Servers
from epochline.cli.standing import Standing, overview_of, standing_of
from epochline.errors import EpochlineError
from epochline.protocol.quantities import counted

if TYPE_CHECKING:
    from epochline.config.discovery import Declared
    from epochline.declare.pipeline import Pipeline

TOO_FAR_BEHIND = 3


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("lag")(lag)


def lag(
    pipeline: Annotated[str | None, typer.Argument(help="One pipeline; all declared ones if not given.")] = None,
    fail_above: Annotated[
        int | None, typer.Option(min=0, help="Exit with 3 if a pipeline lags by more records than this, or stands.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show again every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the lag of each partition: head, end of the log, records between them, and time since the last commit.

    Changes nothing. The end is the last stable offset: a run can read up to there now. The state is that of the pages
    in Airflow, with what only Kafka shows: docs/operations.md explains each. Exit code 0: success; 1: a declaration is
    broken, or Kafka or the ledger of a pipeline cannot be reached, and the other pipelines are shown; 2: there is no
    such pipeline, or wrong use; 3: with --fail-above, a pipeline is further behind, or stands; 130: Ctrl-C ended
    --follow.
    """
    from epochline.cli.refresh import refresh, refuse_with_follow
    from epochline.config import discovery

    found = (
        discovery.look()
        if pipeline is None
        else discovery.Declared(pipelines={pipeline: discovery.find(pipeline)}, broken=())
    )
    if follow:
        refuse_with_follow(json=as_json, fail_above=fail_above)
        refresh(lambda: _look(found, only=pipeline).show)
    seen = _look(found, only=pipeline)
    if as_json:
        printing.say(printing.as_json([row for one in seen.known.values() for row in one.partitions]))
        seen.show_errors()
    else:
        seen.show()
    if seen.errors or found.broken:
        raise typer.Exit(1)
    if fail_above is not None and (seen.stands or any(one > fail_above for one in seen.behind.values())):
        raise typer.Exit(TOO_FAR_BEHIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The lag of the declared pipelines at one moment."""

    found: Declared
    known: Mapping[str, Standing]
    errors: Mapping[str, EpochlineError]

    @property
    def behind(self) -> dict[str, int]:
        """By pipeline, the records between its heads and the ends of its log."""
        return {name: _behind(one) for name, one in self.known.items()}

    @property
    def stands(self) -> bool:
        """Whether a pipeline stands until a person acts."""
        return any(one.stands for one in self.known.values())

    def show(self) -> None:
        """Print a table, a line for each pipeline, and what could not be asked."""
        printing.table(
            ("pipeline", "topic", "partition", "head", "end", "lag", "last commit", "state"),
            [
                (
                    row["pipeline"],
                    row["topic"],
                    row["partition"],
                    row["head"],
                    row["end"],
                    printing.number(row["lag"]),
                    _ago(row["seconds_since_commit"]),
                    row["state"],
                )
                for one in self.known.values()
                for row in one.partitions
            ],
            least=("end", "head"),
        )
        for name, one in self.known.items():
            records = self.behind[name]
            how_far = f"{counted(records, 'record')} behind" if records else "caught up"
            since = f" since {printing.moment(one.since)}" if one.since is not None else ""
            said = f"stands{since}" if one.stands else how_far
            printing.say(f"{name}: {said}" if one.reason is None else f"{name}: {said}. {one.reason}")
        self.show_errors()

    def show_errors(self) -> None:
        """Name the pipelines that could not be asked, and broken declarations."""
        for name, reason in self.errors.items():
            printing.progress(f"{name}: cannot be asked: {reason}")
        printing.broken(self.found.broken)


def _look(found: Declared, *, only: str | None) -> _Seen:
    """Ask the servers of all pipelines. An error of the only pipeline is raised."""
    known, errors = {}, {}
    with ExitStack() as block:
        servers = Servers(block)
        for name, one in found.pipelines.items():
            try:
                known[name] = _standing(one, servers)
            except EpochlineError as error:
                if only is not None:
                    raise
                errors[name] = error
    return _Seen(found=found, known=known, errors=errors)


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{printing.duration(seconds)} ago"


def records_behind(pipeline: str) -> int:
    """How many records a run could read now, in all partitions.

    Raises:
        EpochlineError: no file declares the pipeline, or Kafka or the ledger cannot be reached.
    """
    from epochline.config import discovery

    with ExitStack() as block:
        return _behind(_standing(discovery.find(pipeline), Servers(block)))


def _standing(pipeline: Pipeline, servers: Servers) -> Standing:
    ledger = servers.ledger(pipeline)
    return standing_of(pipeline, overview_of(pipeline, ledger), ledger, servers.source(pipeline))


def _behind(standing: Standing) -> int:
    return sum(row["lag"] or 0 for row in standing.partitions)
