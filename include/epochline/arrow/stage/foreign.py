"""Keep values that only PostgreSQL has away from what would take them for others: functions, Spark, Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import only_postgres
from epochline.declare.specs import CustomSinkSpec, ExternalSpec


def takes_every_value(external: ExternalSpec) -> bool:
    """Whether an external sink writes a value that only PostgreSQL has: text files do, as PostgreSQL's text."""
    return not isinstance(external, CustomSinkSpec) and external.format != "parquet"


def refused_for(what: str, columns: Mapping[str, pa.Array], names: Iterable[str]) -> dict[int, str]:
    """The reason for each row with an infinite date, ``24:00:00`` or the like.

    Args:
        what: would get the rows, for the reason.
        columns: cast columns.
        names: those that ``what`` gets.
    """
    reasons: dict[int, str] = {}
    for name in names:
        for row in only_postgres(columns[name]):
            reasons.setdefault(row, f"{name}: an infinite date, a year after 294246 or 24:00:00 does not pass {what}")
    return reasons


def without_refused(rows: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """The rows with NULL in each temporal value of a refused row, so that a function can read all rows."""
    if not reasons:
        return rows
    refused = pa.array([row in reasons for row in range(rows.num_rows)])
    columns = [
        pc.if_else(refused, pa.scalar(None, one.type), one) if pa.types.is_temporal(one.type) else one
        for one in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
