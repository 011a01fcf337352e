"""Collations of a target's columns. Staging needs the same ones, to compare values as the target does."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.postgres.queries.statements import run


def collations_of(connection: Connection, table: str) -> Mapping[str, sql.Composable]:
    """``COLLATE …`` by column, for columns whose collation is not that of their type; empty if there is no table."""
    schema, name = split_table(table)
    return {
        row.name: sql.SQL(" COLLATE {}").format(sql.Identifier(row.collation_schema, row.collation_name))
        for row in run(connection, "collations_of_table", schema=schema, table=name)
    }
