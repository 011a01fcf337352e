"""What the sides of a transaction in memory share."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from epochline.testing.rows import Rows

if TYPE_CHECKING:
    from epochline.testing.ledger import FakeTransaction


class Side:
    """One side of a `FakeTransaction`: reads and changes the transaction's rows."""

    def __init__(self, tx: FakeTransaction) -> None:
        self._tx = tx

    @property
    def rows(self) -> Rows:
        """The transaction's rows."""
        return self._tx.rows

    def _now(self) -> datetime:
        return self._tx.now()
