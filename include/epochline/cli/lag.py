"""`epochline lag`: the lag of each partition."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from epochline.cli import printing
from epochline.cli.options import AsJson, Follow
from epochline.cli.refresh import refresh, refuse_with_follow
from epochline.cli.standing import Servers, Standing, overview_of, standing_of
from epochline.config import discovery
from epochline.config.discovery import Declared
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError
from epochline.protocol.quantities import counted

TOO_FAR_BEHIND = 3


def lag(
    pipeline: Annotated[str | None, typer.Argument(help="One pipeline; all declared ones if not given.")] = None,
    fail_above: Annotated[
        int | None, typer.Option(min=0, help="Exit with 3 if a pipeline lags by more records than this, or stands.")
    ] = None,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Show the lag of each partition: head, end of the log, records between them, and time since the last commit.

    Changes nothing. The end is the last stable offset, up to which a run can read now. docs/operations.md explains each
    state. Exit code 0: success; 1: a declaration is broken, or Kafka or the ledger of a pipeline cannot be reached, and
    the other pipelines are shown; 2: there is no such pipeline, or wrong use; 3: with --fail-above, a pipeline is
    further behind, or stands; 130: Ctrl-C ended --follow.
    """
    if pipeline is None:
        declared = discovery.look()
    else:
        declared = discovery.Declared(pipelines={pipeline: discovery.find(pipeline)}, broken=())
    if follow:
        refuse_with_follow(json=as_json, fail_above=fail_above)
        refresh(lambda: _look(declared, only=pipeline).show)
    lags = _look(declared, only=pipeline)
    if as_json:
        printing.say(printing.as_json([row for one in lags.standings.values() for row in one.partitions]))
        lags.show_errors()
    else:
        lags.show()
    if lags.errors or declared.broken:
        raise typer.Exit(1)
    if fail_above is not None and any(one.stands or _behind(one) > fail_above for one in lags.standings.values()):
        raise typer.Exit(TOO_FAR_BEHIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lags:
    """The lag of the declared pipelines at one moment."""

    declared: Declared
    standings: Mapping[str, Standing]
    errors: Mapping[str, EpochlineError]

    def show(self) -> None:
        """Print a table, a line for each pipeline, and what could not be asked."""
        columns = ("pipeline", "topic", "partition", "head", "end", "lag", "last commit", "state")
        rows = [row for standing in self.standings.values() for row in standing.partitions]
        cells = [
            {**row, "lag": printing.number(row["lag"]), "last commit": _ago(row["seconds_since_commit"])}
            for row in rows
        ]
        printing.table(columns, [[row[name] for name in columns] for row in cells], least=("end", "head"))
        for name, standing in self.standings.items():
            records = _behind(standing)
            how_far = f"{counted(records, 'record')} behind" if records else "caught up"
            since = f" since {printing.moment(standing.since)}" if standing.since is not None else ""
            text = f"{name}: stands{since}" if standing.stands else f"{name}: {how_far}"
            printing.say(text if standing.reason is None else f"{text}. {standing.reason}")
        self.show_errors()

    def show_errors(self) -> None:
        """Name the pipelines that could not be asked, and broken declarations."""
        for name, reason in self.errors.items():
            printing.progress(f"{name}: cannot be asked: {reason}")
        printing.broken(self.declared.broken)


def _look(declared: Declared, *, only: str | None) -> _Lags:
    """Ask the servers of all pipelines. An error of the only pipeline is raised."""
    standings, errors = {}, {}
    with ExitStack() as block:
        servers = Servers(block)
        for name, pipeline in declared.pipelines.items():
            try:
                standings[name] = _standing(pipeline, servers)
            except EpochlineError as error:
                if only is not None:
                    raise
                errors[name] = error
    return _Lags(declared=declared, standings=standings, errors=errors)


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{printing.duration(seconds)} ago"


def records_behind(pipeline: str) -> int:
    """How many records a run could read now, in all partitions.

    Raises:
        EpochlineError: no file declares the pipeline, or Kafka or the ledger cannot be reached.
    """
    with ExitStack() as block:
        return _behind(_standing(discovery.find(pipeline), Servers(block)))


def _standing(pipeline: Pipeline, servers: Servers) -> Standing:
    ledger = servers.ledger(pipeline)
    return standing_of(pipeline, overview_of(pipeline, ledger), ledger, servers.source(pipeline))


def _behind(standing: Standing) -> int:
    return sum(row["lag"] or 0 for row in standing.partitions)
