"""What a commit asks of a ledger that is away."""

import socket
import threading
from contextlib import closing

import pytest

from epochline.coordinator import commit
from epochline.errors import LedgerUnavailableError
from epochline.postgres.ledger.transactions import PostgresLedger
from tests.in_memory.kafka import FakeKafka


def test_a_commit_asks_twice_and_does_not_try_to_write_down_that_nobody_answered() -> None:
    """P6: once, and once more in case an answer was lost."""
    asked = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                asked.append(1)
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        ledger = PostgresLedger(
            f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/none?sslmode=disable&gssencmode=disable"
        )

        with pytest.raises(LedgerUnavailableError):
            commit(ledger, FakeKafka(), "orders", 1)
        server.shutdown(socket.SHUT_RDWR)

    assert len(asked) == 2
