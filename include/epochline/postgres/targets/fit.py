"""How existing targets fit a declaration, for its author: what would be refused, and what goes nowhere."""

from __future__ import annotations

from sqlalchemy import Connection

from epochline.declare.names import order_column
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import TargetError
from epochline.ports import Fit
from epochline.postgres.targets.catalog import filled_columns, find_target
from epochline.postgres.targets.foreign_keys import refuse_unorderable
from epochline.postgres.targets.identity import refuse_lost


def compare(connection: Connection, pipeline: Pipeline) -> Fit:
    """Compare the targets that exist with the declaration. Changes nothing."""
    problems: list[str] = []
    filled: list[tuple[PostgresTable, dict[str, str]]] = []
    targets = []
    for sink in pipeline.tables:
        try:
            refuse_lost(connection, pipeline, sink)
            target = find_target(connection, sink.table)
            if target is not None:
                targets.append(target)
                filled.append((sink, filled_columns(connection, pipeline, sink, target)))
        except TargetError as error:
            problems.append(error.said)
    try:
        refuse_unorderable(connection, pipeline, targets)
    except TargetError as error:
        problems.append(error.said)
    if pipeline.is_transformed or any(sink.select is not None for sink in pipeline.targets):
        return Fit(problems=problems)  # Which columns a function takes from the record is its own matter.
    taken = {name for _, columns in filled for name in columns}
    taken |= {name for one in pipeline.written for name in (*(one.columns or ()), *one.key, *one.order_by)}
    notes = [
        note
        for sink, columns in filled
        if sink.columns is None and (note := _unfilled(connection, pipeline, sink, columns, taken)) is not None
    ]
    return Fit(problems=problems, notes=notes)


def _unfilled(
    connection: Connection, pipeline: Pipeline, sink: PostgresTable, columns: dict[str, str], taken: set[str]
) -> str | None:
    """What the record has and no sink takes, if the table has columns that nothing fills."""
    target = find_target(connection, sink.table)
    own = {*columns, *sink.added_columns, *map(order_column, sink.order_by)}
    columns_there = {} if target is None else target.columns
    left = [
        name for name, one in columns_there.items() if one.writable and name not in own and not name.startswith("_")
    ]
    alike = {name.casefold(): name for name in left}
    record = [name for name in pipeline.parsed_columns if name not in columns]
    unused = [name for name in record if name not in taken or name.casefold() in alike]
    if sink.mode == "add" or not left or not unused:
        return None
    near = [f"{name} and {alike[name.casefold()]}" for name in unused if name.casefold() in alike]
    return (
        f"{pipeline.name}: nothing fills {', '.join(left)} of target {sink.table}, and {', '.join(unused)} of the"
        " record goes nowhere" + (f"; different only in case: {', '.join(near)}" if near else "")
    )
