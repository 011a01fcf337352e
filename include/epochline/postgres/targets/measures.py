"""What the staged rows say to the bounds of a declaration: keys that a target has already, and an author's queries.

A query runs with the rights of the role ``epochline_writer``, which sees no target, in a read-only part of the
transaction that is rolled back afterwards. A function of the ledger runs it, so that it is one query and nothing else.
"""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import psycopg2
from psycopg2 import sql
from psycopg2.errors import InsufficientPrivilege, QueryCanceled, UndefinedObject

from epochline.declare.bounds import Bounds, Measure
from epochline.declare.names import WRITER
from epochline.errors import MeasureError
from epochline.postgres.queries.session_settings import set_local
from epochline.postgres.queries.statements import Connection, as_text, change, run
from epochline.postgres.targets.application import Application, error_in_words
from epochline.protocol.bounds import Measured, Overwritten, Value
from epochline.protocol.quantities import duration

_NO_FINITE = {"NaN": Decimal("NaN"), "Infinity": Decimal("Infinity"), "-Infinity": Decimal("-Infinity")}
"""Numbers that JSON has only as texts."""


def measure(connection: Connection, bounds: Bounds, tables: Sequence[Application]) -> Measured:
    """Measure the staged rows of an epoch's targets.

    Raises:
        MeasureError: a query failed, took too long, or gave something else than one value.
    """
    upserts = [what for what in tables if what.sink.mode == "upsert" and bounds.most_overwritten is not None]
    overwritten = {what.sink.table: _overwritten(what) for what in upserts}
    if not bounds.measures:
        return Measured(overwritten=overwritten)
    by_table: dict[str | None, Application] = {what.sink.table: what for what in tables}
    by_table[None] = tables[0]
    change(connection, "SAVEPOINT measures")
    _take_less_rights(connection, bounds, tables)
    values = {measure.name: _value(by_table[measure.table], bounds, measure) for measure in bounds.measures}
    change(connection, "ROLLBACK TO SAVEPOINT measures")
    change(connection, "RELEASE SAVEPOINT measures")
    return Measured(overwritten=overwritten, values=values)


def _overwritten(what: Application) -> Overwritten:
    [(keys, there)] = what.query(
        "SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT FROM {target} t WHERE {same}))"
        " FROM (SELECT DISTINCT {key} FROM {staging}) w"
    )
    return Overwritten(keys=keys, there=there)


def _take_less_rights(connection: Connection, bounds: Bounds, tables: Sequence[Application]) -> None:
    try:
        for what in tables:
            what.change("GRANT SELECT ON {staging} TO {writer}", writer=WRITER)
        change(connection, "SET LOCAL ROLE {writer}", writer=WRITER)
    except (InsufficientPrivilege, UndefinedObject) as error:
        raise MeasureError(
            f"{tables[0].epoch}: the queries of its bounds run as the role {WRITER}, which the ledger's login may not"
            f" take: {error.diag.message_primary}. Nothing was sealed. Run `epochline migrate`, which grants it or"
            " prints what a DBA has to run."
        ) from None
    patience = int(bounds.statement_timeout.total_seconds() * 1000)
    change(connection, set_local({"transaction_read_only": "on", "statement_timeout": patience}))


def _value(what: Application, bounds: Bounds, measure: Measure) -> Value:
    query = what.compose(
        "WITH staged AS (SELECT * FROM {staging}) SELECT to_json(m) FROM (\n{asked}\n) AS m (_epochline_value)",
        asked=sql.SQL(measure.sql),
    )
    why = None
    try:
        text = run(what.connection, "only_row", query=as_text(what.connection, query)).scalar_one()
    except QueryCanceled:
        why = f"took longer than {duration(bounds.statement_timeout.total_seconds())}"
    except psycopg2.Error as error:
        if error.pgcode is None or error.pgcode.startswith(("08", "53", "57", "58", "XX")):
            raise
        why = f"failed: {error_in_words(error)[0]}"
    if why is None:
        row = [value for _, value in json.loads(text, object_pairs_hook=list, parse_int=Decimal, parse_float=Decimal)]
        value: Any = _NO_FINITE.get(row[0], row[0]) if len(row) == 1 and isinstance(row[0], str) else row[0]
        if len(row) == 1 and (value is None or isinstance(value, bool | Decimal)):
            return value
        kind = "another number of columns" if len(row) != 1 else "neither a number nor a condition"
        why = f"gave {kind}, and one is needed"
    # Not chained: the driver's error may contain a value.
    raise MeasureError(
        f"{what.epoch}: the measure {measure} of its bounds {why}. Nothing was sealed. Correct its SQL; the next epoch"
        " reads the range again."
    )
