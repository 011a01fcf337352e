"""Process committed epochs downstream, each exactly once: the cursor moves in the consumer's own transaction.

An asset event may come twice, and one event may stand for many epochs. So the consumer asks the ledger which epochs
are due, whatever triggered it::

    with closing(psycopg2.connect(dsn)) as connection:
        for epoch_id in take_epochs(connection, "daily", "orders", "orders"):
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO daily SELECT … FROM orders WHERE _epoch = %s", (epoch_id,))

This module needs only psycopg2 and loads no pipeline.
"""

from collections.abc import Iterator
from typing import Any, cast

from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection

from epochline.errors import DownstreamError


def take_epochs(connection: connection, consumer: str, pipeline: str, sink: str) -> Iterator[int]:
    """Yields each epoch that a sink shows and the consumer has not taken, in order, in one transaction each.

    The loop body writes through the same connection and must not end the transaction: it is committed when the next
    epoch is requested. After an error or ``break`` the current epoch is rolled back and comes again next time. Epochs
    that were undone before they were taken are left out. Concurrent runs of the same consumer wait for each other.

    Args:
        connection: to the database of the ledger; no transaction is open, and autocommit is off.
        consumer: the consumer's name. It has one cursor per pipeline and sink.
        pipeline: whose epochs to take.
        sink: as ``epochline.receipts`` names it.

    Raises:
        DownstreamError: the connection has autocommit on or a transaction open, or the loop body ended the
            transaction. The epoch of an uncommitted transaction is not taken.
    """
    what = f"consumer {consumer} of {pipeline} in {sink}"
    if connection.autocommit:
        raise DownstreamError(f"{what}: autocommit is on for the connection. Set autocommit to False.")
    if connection.get_transaction_status() != TRANSACTION_STATUS_IDLE:
        raise DownstreamError(f"{what}: a transaction is open on the connection. Commit it or roll it back first.")
    return _take_each(connection, what, (consumer, pipeline, sink))


def _take_each(connection: connection, what: str, cursor_key: tuple[str, str, str]) -> Iterator[int]:
    try:
        while True:
            epoch_id, began_as = _query_row(
                connection, "SELECT epochline.take_epoch(%s, %s, %s), pg_current_xact_id()::text", cursor_key
            )
            if epoch_id is None:
                return
            yield epoch_id
            # Ask the server: a statement whose error the loop body swallowed would otherwise lose its work silently.
            (now_in,) = _query_row(connection, "SELECT pg_current_xact_id_if_assigned()::text", ())
            if now_in != began_as:
                raise DownstreamError(
                    f"{what}: the loop body ended the transaction that took epoch {epoch_id}. The epoch may be taken"
                    " without its work, or the work may be committed without the epoch. Check which is the case, and"
                    " remove commit() and rollback() from the loop body."
                )
            connection.commit()
    finally:
        if not connection.closed:
            connection.rollback()


def _query_row(connection: connection, statement: str, values: tuple[str, ...]) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cast("tuple[Any, ...]", cursor.fetchone())
