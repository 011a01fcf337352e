"""`epochline audit`: compare committed epochs with their ranges in the source."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from epochline.cli import connections, printing
from epochline.cli.database import ask, session
from epochline.cli.foreign_audit import DIFFERENT, NOT_JUDGED, audit_declared
from epochline.cli.ledger import connection_of
from epochline.cli.options import declared_pipelines
from epochline.config.logins import complete
from epochline.config.registry import Registries
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochNotFoundError
from epochline.protocol.quantities import counted

if TYPE_CHECKING:
    from epochline.audit.again import RunAgain
    from epochline.audit.findings import Difference, EpochResult, Summary

_EPOCHS = re.compile(r"(\d*)\.\.(\d*)|(\d+)")


def audit(
    pipeline: Annotated[
        str | None, typer.Argument(help="The pipeline's name.", autocompletion=declared_pipelines)
    ] = None,
    epochs: Annotated[
        str | None, typer.Option(help="Epoch ids: 7, 3..9, 3.. or ..9, both ends included; all if not given.")
    ] = None,
    declaration: Annotated[
        Path | None, typer.Option(help="A Python file with a Pipeline that no DAG runs: for another program's table.")
    ] = None,
    since: Annotated[str | None, typer.Option("--from", help="With --declaration: time of the first record.")] = None,
    until: Annotated[str | None, typer.Option(help="With --declaration: time after the last record.")] = None,
    lineage: Annotated[
        list[str] | None,
        typer.Option(help="With --declaration: topic=COLUMN, partition=COLUMN, offset=COLUMN or row=COLUMN."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object per line.")] = False,
) -> None:
    """Read committed ranges of PIPELINE again and compare counts, digests and rows. Changes nothing.

    Names the topic, partition and offset of every difference. Lists offsets that the source no longer holds, which it
    cannot check. Compares rows of tables, topics and files by value, where it can. Runs a transform or windows again
    in a local Spark, twice per epoch.

    With --declaration, compares a table that another program wrote from a topic with the records between two times. The
    file says how a record becomes a row; PIPELINE chooses one of several. Rows are compared by the columns that hold a
    record's place, or by the declared key. Needs SELECT on the table, and no ledger. ISO times without a zone are UTC.

    Exit code 0: everything that was checked is exact; 1: there are differences, or the audit was refused; 2: wrong use;
    3: no difference, but not everything could be checked.
    """
    from epochline.audit.run import audit as run
    from epochline.audit.several import SeveralReaders  # It loads Arrow.

    if declaration is not None:
        audit_declared(declaration, pipeline, since, until, lineage or (), as_json=as_json, epochs=epochs)
        return
    if pipeline is None or since is not None or until is not None or lineage:
        raise typer.BadParameter("name a pipeline, or give --declaration with --from and --until")
    first, last = _bounds(epochs)
    dsn = connections.adapters().postgres_dsn(connection_of(pipeline))
    with session(dsn) as ledger:
        stored = ask(ledger, "newest_declaration", pipeline=pipeline)
    if not stored:
        raise EpochNotFoundError(f"the ledger has no epoch of a pipeline {pipeline!r} to audit.")
    declared = Pipeline.from_stored(json.dumps(stored[0]["body"]))
    Registries(connections.adapters().registries_of(declared)).install()
    readers = {name: connections.adapters().records(one.source) for name, one in declared.inputs.items()}
    source = readers.get("") or SeveralReaders(readers)
    # The bar goes to standard error, and only to a terminal. Results go to standard output.
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    errors = Console(stderr=True)
    with ExitStack() as block:
        again = _again(block, declared) if declared.is_transformed else None
        bar = block.enter_context(Progress(*columns, console=errors, disable=not errors.is_terminal))
        reporter = _Lines(bar, as_json=as_json)
        summary = run(
            complete(dsn), source, pipeline, reporter, kafka_settings=connections.adapters().kafka_settings,
            first=first, last=last, run_again=again,
        )  # fmt: skip
    reporter.summary(pipeline, summary)
    if summary.differences:
        raise typer.Exit(DIFFERENT)
    if summary.not_judged or summary.not_judged_targets:
        raise typer.Exit(NOT_JUDGED)


def _again(block: ExitStack, declared: Pipeline) -> RunAgain:
    """Runs transforms in a session of Spark, which starts with the first one and ends with the block."""

    def start() -> Any:
        from epochline.cli.execution import start_spark

        return start_spark(block, declared, connections.spark_master(declared.spark_connection))

    @cache
    def transforms() -> RunAgain:
        from epochline.local.jars import installed_pyspark

        installed_pyspark()  # raises StackError, with the way to install it
        from epochline.spark.again import TransformAgain

        return TransformAgain(start, declared.spark_conf)

    return lambda epoch: transforms()(epoch)


def _bounds(epochs: str | None) -> tuple[int | None, int | None]:
    if epochs is None:
        return None, None
    match = _EPOCHS.fullmatch(epochs.strip())
    if match is None or epochs.strip() == "..":
        raise typer.BadParameter(f"{epochs!r}: write 7, 3..9, 3.. or ..9", param_hint="--epochs")
    if match[3]:
        return int(match[3]), int(match[3])
    return int(match[1]) if match[1] else 0, int(match[2]) if match[2] else None


class _Lines:
    """Prints each finding at once, because an audit keeps none (`epochline.audit.findings.Reporter`)."""

    def __init__(self, bar: Progress, *, as_json: bool) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._json = as_json

    def begin(self, epochs: int, offsets: int) -> None:
        self._task = self._bar.add_task(f"auditing {counted(epochs, 'epoch')}", total=offsets)

    def advance(self, offsets: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task, offsets)

    def difference(self, difference: Difference) -> None:
        self._say(str(difference), {"difference": asdict(difference)})

    def epoch(self, result: EpochResult) -> None:
        kind = "" if result.kind == "regular" else f" ({result.kind})"
        lines = [f"epoch {result.epoch_id}{kind}: {_verdict(result)}"]
        if result.superseded:
            lines.append(f"  generation {result.generation}: superseded, its rows stay")
        for part in result.partitions:
            read = counted(part.found.received, "record") if part.found else "not read"
            lines.append(f"  {part.topic}-{part.partition} [{part.start}, {part.until}): {read}")
            lines += [f"    {reason}" for reason in part.not_judged]
        lines += [f"  {sink.sink}: {sink.said or 'rows compared'}" for sink in result.sinks]
        lines += [f"  {note}" for note in result.notes]
        self._say("\n".join(lines), {"epoch": asdict(result) | {"verdict": _verdict(result)}})

    def summary(self, pipeline: str, summary: Summary) -> None:
        """Print the last line."""
        line = f"{pipeline}: {counted(summary.epochs, 'epoch')}, {counted(summary.records, 'record')} read again: "
        line += counted(summary.differences, "difference") if summary.differences else "no difference"
        if summary.not_judged:
            line += f"; {counted(summary.not_judged, 'epoch')} could not be judged wholly"
        if summary.not_judged_targets:
            line += f"; not compared after the last epoch: {', '.join(summary.not_judged_targets)}"
        self._say("\n".join([*summary.notes, line]), {"summary": asdict(summary) | {"pipeline": pipeline}})

    def _say(self, text: str, value: dict[str, Any]) -> None:
        printing.say(printing.json_line(value) if self._json else text)


def _verdict(result: EpochResult) -> str:
    if result.differences:
        return "different"
    return "exact" if result.judged else "not judged wholly"
