"""A consumer of committed epochs: writes one row per epoch into a table with the epoch as primary key."""

from __future__ import annotations

from contextlib import closing

import psycopg2
from psycopg2 import sql

from epochline.downstream import take_epochs


def summarize(dsn: str, *, consumer: str, pipeline: str, sink: str) -> list[int]:
    """Write the number of rows of each new epoch into ``examples.<consumer>``.

    Creates the schema and the table if they are missing.

    Args:
        dsn: libpq URL of the database with the ledger and the sink's table.
        consumer: name of the consumer and of its table in the schema ``examples``.
        pipeline: the pipeline whose epochs are taken.
        sink: a table with lineage.

    Returns:
        Ids of the taken epochs.
    """
    table, source = sql.Identifier("examples", consumer), sql.Identifier(*sink.split("."))
    taken = []
    with closing(psycopg2.connect(dsn)) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT to_regnamespace('examples') IS NULL")
            if cursor.fetchone() == (True,):
                cursor.execute("CREATE SCHEMA examples")
            cursor.execute(
                sql.SQL("CREATE TABLE IF NOT EXISTS {} (epoch_id bigint PRIMARY KEY, rows bigint NOT NULL)").format(
                    table
                )
            )
        for epoch_id in take_epochs(connection, consumer, pipeline, sink):
            with connection.cursor() as cursor:
                cursor.execute(
                    sql.SQL("INSERT INTO {} SELECT %s, count(*) FROM {} WHERE _epoch = %s").format(table, source),
                    (epoch_id, epoch_id),
                )
            taken.append(epoch_id)
    return taken
