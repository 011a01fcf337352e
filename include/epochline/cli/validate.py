"""`epochline validate`: check declarations, without any server; and with targets where the database is at hand."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from epochline.cli import connections, printing
from epochline.cli.options import AsJson
from epochline.config import discovery
from epochline.config.discovery import Declared, unimportable
from epochline.config.shared_tables import shared_tables
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, LedgerError, one_line

INVALID = 1
_PLACE = re.compile(r"(?P<file>\S.*?\.py)(?::(?P<line>\d+))?: (?P<said>.*)", re.DOTALL)


def validate(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Pipelines; all declared ones if none is given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check declarations and their functions, and existing tables if the database answers. Changes nothing.

    Imports every DAG file and every function that a declaration names, and reports each problem with file and line: an
    invalid declaration, a function that cannot be imported, a parse or a select that lacks a column, a name or a table
    that two pipelines share. `preview` finds problems of a transform. If the target database has a ledger and answers,
    existing tables are compared as well; the last line says whether they were. `plan` asks Kafka and other sinks. With
    NAME, a broken declaration in another file is only a warning. Problems of every named pipeline are reported. Exit
    code 0: every declaration, or every named one, is valid; 1: there are problems, or there is no such pipeline;
    2: wrong use.
    """
    declared = discovery.look()
    asked = list(dict.fromkeys(names or sorted(declared.pipelines)))
    checked = _Checked()
    unknown = [name for name in asked if name not in declared.pipelines]
    if unknown or not names:
        checked.problems += [one_line(one) for one in declared.broken]
    for name in asked:
        _check(declared, name, checked)
    if as_json:
        problems = [_placed(problem) for problem in checked.problems]
        answer = {"pipelines": asked, "valid": checked.valid, "tables_compared": checked.compared}
        printing.say(printing.as_json({**answer, "problems": problems}))
    else:
        for problem in checked.problems:
            printing.say(problem)
        if checked.valid or not checked.problems:
            printing.say(f"valid: {', '.join(checked.valid) or 'no pipeline is declared'}")
        for line in checked.summary():
            printing.say(line)
    if not unknown and names:
        printing.broken(declared.broken)
    if checked.problems:
        raise typer.Exit(INVALID)


@dataclass(slots=True)
class _Checked:
    """What was found. ``away`` has the reasons why tables were not compared, each once, with their pipelines."""

    problems: list[str] = field(default_factory=list)
    valid: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    away: dict[str, list[str]] = field(default_factory=dict)
    transformed: list[str] = field(default_factory=list)

    def summary(self) -> Sequence[str]:
        """What was checked, and what was not."""
        if not self.compared and not self.away:
            return ()
        lines = ["checked: declarations, their functions, and tables that two pipelines name"]
        lines += [f"not run: transforms; `epochline preview {name}` runs that of {name}" for name in self.transformed]
        lines += [f"compared with PostgreSQL: the tables of {', '.join(self.compared)}"] if self.compared else []
        lines += [f"not compared: the tables of {', '.join(names)}: {why}" for why, names in self.away.items()]
        return lines


def _placed(problem: str) -> dict[str, Any]:
    part = _PLACE.fullmatch(problem)
    if part is None:
        return {"file": None, "line": None, "problem": problem}
    return {"file": part["file"], "line": int(part["line"]) if part["line"] else None, "problem": part["said"]}


def _check(declared: Declared, name: str, checked: _Checked) -> None:
    if name not in declared.pipelines:
        valid = ", ".join(declared.pipelines) or "none"
        left_out = discovery.why_left_out(name)
        checked.problems.append(left_out or f"no valid pipeline {name!r} is declared; valid ones: {valid}")
        return
    pipeline = declared.pipelines[name]
    shared = [str(one) for one in shared_tables(declared) if repr(name) in str(one)]
    problems = list(unimportable(pipeline))
    has_functions = isinstance(pipeline.parse, str) or any(sink.select is not None for sink in pipeline.sinks)
    if not problems and has_functions:
        from epochline.audit.preview import breaches  # It loads Arrow.

        problems += breaches(pipeline)
    problems += _misfits(pipeline, checked)
    checked.problems += [one for one in shared if one not in checked.problems]
    checked.problems += [f"{declared.places[name]}: pipeline {name!r}: {why}" for why in problems]
    if not shared and not problems:
        checked.valid.append(name)
        checked.transformed += [name] if pipeline.transform is not None else []


def _misfits(pipeline: Pipeline, checked: _Checked) -> Sequence[str]:
    """Why the tables that exist do not fit a declaration; notes whether a database answered. Prints the notes."""
    try:
        with connections.adapters().ledger(pipeline).transaction() as tx:
            fit = tx.targets.compare(pipeline)
    except (ConfigurationError, LedgerError) as error:
        checked.away.setdefault(one_line(error), []).append(pipeline.name)
        return ()
    checked.compared.append(pipeline.name)
    for note in fit.notes:
        printing.progress(note)
    return fit.problems
