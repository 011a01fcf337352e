"""Taking committed epochs downstream, each exactly once: the cursor moves in the consumer's own transaction (E6).

An asset event may come twice, and one event may stand for many epochs. What is due is asked of the ledger, whatever
triggered the consumer::

    with closing(psycopg2.connect(dsn)) as connection:
        for epoch_id in take_epochs(connection, "daily", "orders", "orders"):
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO daily SELECT … FROM orders WHERE _epoch = %s", (epoch_id,))

Needs psycopg2 alone, and nothing of a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection

from epochline.errors import DownstreamError


def take_epochs(connection: connection, consumer: str, pipeline: str, sink: str) -> Iterator[int]:
    """Each epoch that a sink shows and the consumer has not taken, in order, in a transaction of its own.

    The block works with the same connection and does not end the transaction: that is committed when the next epoch
    is asked for. An error, or ``break``, undoes the epoch in hand, and it comes again next time. Epochs that were
    undone before they were taken are left out. Others who ask for the same consumer wait until the transaction ends.

    Args:
        connection: to the database of the ledger; no transaction is open, and autocommit is off.
        consumer: a name of the consumer's own; each has a cursor per pipeline and sink.
        pipeline: whose epochs.
        sink: as ``epochline.receipts`` names it.

    Raises:
        DownstreamError: the connection cannot keep the work and the cursor together, or the block ended the
            transaction. Nothing that is not committed yet was taken.
    """
    what = f"consumer {consumer} of {pipeline} in {sink}"
    if connection.autocommit:
        raise DownstreamError(f"{what}: the connection commits every statement by itself. Set autocommit to False.")
    if connection.get_transaction_status() != TRANSACTION_STATUS_IDLE:
        raise DownstreamError(f"{what}: a transaction is open on the connection. Commit it or roll it back first.")
    return _taken(connection, what, (consumer, pipeline, sink))


def _taken(connection: connection, what: str, cursor_key: tuple[str, str, str]) -> Iterator[int]:
    try:
        while True:
            epoch_id, began_as = _ask(
                connection, "SELECT epochline.take_epoch(%s, %s, %s), pg_current_xact_id()::text", cursor_key
            )
            if epoch_id is None:
                return
            yield epoch_id
            # Asked of the server: also a statement that failed, and was passed over, would lose the work in silence.
            (now_in,) = _ask(connection, "SELECT pg_current_xact_id_if_assigned()::text", ())
            if now_in != began_as:
                raise DownstreamError(
                    f"{what}: the transaction that took epoch {epoch_id} was ended before its work was done, so the"
                    " epoch may be taken without its work, or the work be done without it. Look which, and take"
                    " commit() and rollback() out of the block."
                )
            connection.commit()
    finally:
        if not connection.closed:
            connection.rollback()


def _ask(connection: connection, statement: str, values: tuple[str, ...]) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cast("tuple[Any, ...]", cursor.fetchone())
