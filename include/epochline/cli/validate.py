"""`epochline validate`: check declarations, without any server; and with targets where the database is at hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from epochline.cli import printing

if TYPE_CHECKING:
    from epochline.config.discovery import Declared
    from epochline.declare.pipeline import Pipeline

INVALID = 1
_PLACE = re.compile(r"(?P<file>\S.*?\.py)(?::(?P<line>\d+))?: (?P<said>.*)", re.DOTALL)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("validate")(validate)


def validate(
    name: Annotated[str | None, typer.Argument(help="One pipeline; all declared ones if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check the declarations, their functions and their tables without any server. Changes nothing.

    Imports every DAG file and every function that a declaration names, and reports each problem with file and line:
    an invalid declaration, a function that cannot be imported, a parse or a select that lacks a column, a name or a
    table that two pipelines share. What only a transform shows, the first epoch shows. Where the target database
    has a ledger and answers, tables that exist are compared as well. With NAME, a broken declaration of another
    file is only a warning. Exit code 0: every declaration, or that of NAME, is valid; 1: there are problems, or
    there is no such pipeline; 2: wrong use.
    """
    from epochline.config import discovery

    declared = discovery.look()
    problems = _problems(declared, name)
    checked = sorted(declared.pipelines) if name is None else [name]
    if as_json:
        parts = [_PLACE.fullmatch(one) for one in problems]
        found = [
            {
                "file": part["file"] if part else None,
                "line": int(part["line"]) if part and part["line"] else None,
                "problem": part["said"] if part else one,
            }
            for one, part in zip(problems, parts, strict=True)
        ]
        printing.say(printing.as_json({"pipelines": checked, "problems": found}))
    else:
        for one in problems:
            printing.say(one)
        if not problems:
            printing.say(f"valid: {', '.join(checked) or 'no pipeline is declared'}")
    if name is not None and name in declared.pipelines:
        printing.broken(declared.broken)
    if problems:
        raise typer.Exit(INVALID)


def _problems(declared: Declared, name: str | None) -> list[str]:
    from epochline.config.discovery import why_left_out
    from epochline.config.importable import unimportable
    from epochline.config.shared_tables import shared_tables

    broken = [" ".join(str(one).split()) for one in declared.broken]
    shared = [str(one) for one in shared_tables(declared)]
    if name is None:
        asked, said = list(declared.pipelines), broken + shared
    elif name in declared.pipelines:
        asked, said = [name], [one for one in shared if repr(name) in one]
    else:
        known = ", ".join(declared.pipelines) or "none"
        left_out = why_left_out(name)
        if left_out is not None:
            return [left_out]
        return [*broken, f"no valid pipeline {name!r} is declared; valid ones: {known}"]
    said += [
        f"{declared.places[one]}: pipeline {one!r}: {why}"
        for one in asked
        for why in unimportable(declared.pipelines[one])
    ]
    if any(_has_functions(declared.pipelines[one]) for one in asked):
        # It loads Arrow.
        from epochline.audit.breaches import breaches

        said += [
            f"{declared.places[one]}: pipeline {one!r}: {why}"
            for one in asked
            if not unimportable(declared.pipelines[one])
            for why in breaches(declared.pipelines[one])
        ]
    return said + [
        f"{declared.places[one]}: pipeline {one!r}: {why}" for one in asked for why in _misfits(declared, one)
    ]


def _has_functions(pipeline: Pipeline) -> bool:
    return isinstance(pipeline.parse, str) or any(sink.select is not None for sink in pipeline.sinks)


def _misfits(declared: Declared, name: str) -> Sequence[str]:
    """Why the tables that exist do not fit a declaration; nothing if no database answers. Prints the notes."""
    from epochline.cli.connections import ledger_of
    from epochline.errors import ConfigurationError, LedgerError

    pipeline = declared.pipelines[name]
    try:
        with ledger_of(pipeline).transaction() as tx:
            fit = tx.targets.compare(pipeline)
    except (ConfigurationError, LedgerError):
        return ()
    for note in fit.notes:
        printing.progress(note)
    return fit.problems
