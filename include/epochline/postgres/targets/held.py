"""What a staging table holds: the number of its rows, and a digest that shows the commit a change since the seal."""

import re

from psycopg2 import sql

from epochline.ports import Held
from epochline.postgres.queries.statements import Connection, compose, joined, query
from epochline.postgres.targets.columns import columns_of

_SENT = {"real": "float4send", "double precision": "float8send"}
"""Functions that give the bytes of values of which PostgreSQL calls different ones equal: 0.0 and -0.0."""

_TEXTS = ("text", "character varying")
_AS_STORED = (
    "boolean", "smallint", "integer", "bigint", "date", "uuid", "bytea", "time without time zone",
    "timestamp without time zone", "timestamp with time zone",
)  # fmt: skip
"""Types of which PostgreSQL hashes each bit. Values of the others are hashed as texts."""


def held(connection: Connection, table: str) -> Held | None:
    """The rows of a staging table, by reading all of it; None if the table is gone.

    The digest is the sum of a 64-bit hash per row: hashing texts of whole rows would take five times as long.
    """
    columns = columns_of(connection, f"epochline_staging.{table}")
    if not columns:
        return None
    values = joined(_hashed(name, re.sub(r"\(.*\)", "", column.kind)) for name, column in columns.items())
    statement = (
        "SELECT count(*), coalesce(sum(hash_record_extended(ROW({values}), 0)), 0) FROM epochline_staging.{table}"
    )
    [(rows, digest)] = query(connection, statement, values=values, table=table)
    return Held(rows=rows, digest=str(digest))


def _hashed(name: str, kind: str) -> sql.Composed:
    if kind in _SENT:
        return compose("{function}({name})", function=sql.Identifier(_SENT[kind]), name=name)
    if kind in _AS_STORED:
        return compose("{name}", name=name)
    # Under a collation of its own, a text may be equal to another one.
    return compose('{name}{cast} COLLATE "C"', name=name, cast=sql.SQL("" if kind in _TEXTS else "::text"))
