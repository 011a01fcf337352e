"""In which order an epoch's rows leave an outbox: one that is written down, wherever the table keeps them."""

from contextlib import closing

import psycopg2
from psycopg2 import sql

from epochline import Bytes, KafkaTopic, Text
from epochline.declare.names import split_table
from epochline.postgres.ledger.receipts import rows_of
from epochline.postgres.ledger.transactions import PostgresLedger
from tests.contract.worlds import orders
from tests.integration.sinks_world import new_world

NUMBERS = range(1, 2001)


def value(number: int) -> bytes:
    """Every ninth one of 1,900 bytes, so that a page has no room for it where it has room for what comes after."""
    return str(number).zfill(1900 if number % 9 == 0 else 60).encode()


def test_rows_without_a_record_are_sent_in_the_order_in_which_they_were_staged(postgres_dsn: str) -> None:
    """K19: rows of a transform, of two parts, in an outbox whose free space is used again."""
    topic = KafkaTopic(topic="out", value=Bytes(column="value"), aggregated=True)
    ledger, outbox = PostgresLedger(postgres_dsn), topic.outbox("orders")
    with ledger.transaction() as tx:
        tx.targets.create(orders(sinks=[topic], transform="timed:parse"))
    table = sql.Identifier(*split_table(outbox.table))
    insert = sql.SQL("INSERT INTO {} (value, _part, _seq, _epoch) VALUES (%s, %s, %s, %s)").format(table)
    with closing(psycopg2.connect(postgres_dsn)) as session, session.cursor() as cursor:
        session.autocommit = True
        for epoch_id in (1, 2):
            cursor.executemany(insert, [(value(number), number // 1001, number, epoch_id) for number in NUMBERS])
            if epoch_id == 1:
                cursor.execute(sql.SQL("DELETE FROM {}").format(table))
                cursor.execute(sql.SQL("VACUUM {}").format(table))
        cursor.execute(sql.SQL("SELECT value FROM {} ORDER BY ctid").format(table))
        as_they_lie = [int(bytes(row[0])) for row in cursor.fetchall()]

    assert as_they_lie != list(NUMBERS), "the table keeps them in their order; the test shows nothing"
    with ledger.connection() as connection:
        assert [int(row[1] or b"") for row in rows_of(connection, outbox, 2)] == list(NUMBERS)


def test_a_writer_notes_part_and_number_of_every_row_for_a_topic(postgres_dsn: str, kafka_bootstrap: str) -> None:
    """Across the batches of a part, here one of each partition."""
    world = new_world(postgres_dsn, kafka_bootstrap, KafkaTopic(topic="out", value=Text()))
    world.produce(*map(str, range(20)))
    world.it.staged()

    [(table,)] = world.it.sql("SELECT table_name FROM epochline.staging WHERE sink LIKE 'epochline_outbox.%'")
    rows = world.it.sql(f'SELECT _part, _seq, _partition, _offset FROM epochline_staging."{table}" ORDER BY 1, 2')
    # Outside of Spark the part is whatever the test before said; in one part it is the same for all rows.
    assert [(part, number) for part, number, _, _ in rows] == [(rows[0][0], at) for at in range(20)]
    assert [place[2:] for place in rows] == sorted(place[2:] for place in rows)
