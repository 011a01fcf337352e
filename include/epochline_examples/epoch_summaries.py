"""A consumer of committed epochs: writes one row per epoch into a table with the epoch as primary key."""

from contextlib import closing

import psycopg2
from psycopg2 import sql

from epochline.downstream import take_epochs


def summarize(dsn: str, *, consumer: str, pipeline: str, sink: str) -> list[int]:
    """Write the number of rows of each new epoch into ``examples.<consumer>``; returns the ids of the taken epochs.

    The sink is a table with lineage, in the database of the ledger. Schema and table are created if they are missing.
    """
    table, source = sql.Identifier("examples", consumer), sql.Identifier(*sink.split("."))
    epoch_ids = []
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
            epoch_ids.append(epoch_id)
    return epoch_ids
