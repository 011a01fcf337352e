"""A consumer of committed epochs: one row per epoch into a table whose key is the epoch, so that none fits in twice."""

from __future__ import annotations

from contextlib import closing

import psycopg2
from psycopg2 import sql

from epochline.downstream import take_epochs


def summarize(dsn: str, *, consumer: str, pipeline: str, sink: str) -> list[int]:
    """Write how many rows each new epoch brought, into a table named as the consumer, made where it is missing.

    Args:
        dsn: of the database that holds the ledger and the sink's table.
        consumer: whose cursor moves.
        pipeline: whose epochs.
        sink: a table with lineage.

    Returns:
        The epochs that were taken.
    """
    table, source = sql.Identifier(consumer), sql.Identifier(*sink.split("."))
    taken = []
    with closing(psycopg2.connect(dsn)) as connection:
        with connection, connection.cursor() as cursor:
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
