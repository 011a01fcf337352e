"""`epochline drill`: kill a pipeline at each step, over a copy of its records, and compare what it shows."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from epochline.cli import connections, printing
from epochline.cli.options import AsJson, Name
from epochline.config import discovery

_DIFFERENT, _LEFT, _TERMINATED = 1, 3, 143


def drill(
    pipeline: Name,
    records: Annotated[int, typer.Option(min=2, help="Most records to copy.")] = 2_000,
    minutes: Annotated[float, typer.Option(min=0, help="After this time no further step begins.")] = 10,
    every: Annotated[bool, typer.Option("--every", help="Kill at every failpoint that the pipeline passes.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Copy again, and forget what earlier calls found.")] = False,
    report: Annotated[Path | None, typer.Option(help="Also write the report to this file, in Markdown.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="VARIABLE", help="An environment variable that the pipeline's functions need."),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master of the runs.")] = "local[2,4]",
    as_json: AsJson = False,
) -> None:
    """Kill PIPELINE at each step, on servers of its own, and compare the results with those of an undisturbed run.

    Copies the next records, and older ones if fewer wait, into a Kafka and a PostgreSQL in
    $EPOCHLINE_HOME/drills/PIPELINE. The copy only reads production; nothing reaches it afterwards. Runs the pipeline
    once undisturbed. Then, for each step of an epoch and each sink, kills a run there, lets the next run recover, and
    compares targets, states, topics, files, quarantine and ledger. The next call goes on with the steps that are left,
    as long as declaration, code and options stay the same. Needs the extra `stack`. Exit code 0: all equal; 1: a
    difference, a run that did not recover, or nothing was run; 2: wrong use; 3: equal so far, and steps are left; 130:
    interrupted.
    """
    from epochline.drill.report import as_dict, as_markdown
    from epochline.drill.run import Drill, Wanted

    if report is not None and (report.is_dir() or not os.access(report.absolute().parent, os.W_OK)):
        raise typer.BadParameter(f"{report} cannot be written", param_hint="--report")
    wanted = Wanted(
        records=records, minutes=minutes, every=every, fresh=fresh, master=master, variables=tuple(keep or ())
    )
    drilled = Drill(discovery.find(pipeline), connections.adapters(), wanted, printing.progress)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        found = drilled.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    text = as_markdown(pipeline, found)
    if report is not None:
        report.write_text(text)
    printing.say(printing.as_json(as_dict(pipeline, found)) if as_json else text)
    if found.worst in ("different", "not recovered"):
        raise typer.Exit(_DIFFERENT)
    if found.worst == "unfinished":
        raise typer.Exit(_LEFT)
