"""Finds every row that staging refuses in one Spark partition, once COPY has refused the first one.

From then on the partition keeps nothing: what is copied only shows whether it is refused.
"""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta

import pyarrow as pa

from epochline.errors import BadRecordError
from epochline.protocol.refused import Place, RefusedRow, Search
from epochline.spark.transaction import PartTransaction, RowRefusedError

log = logging.getLogger(__name__)

_PLACE = ("_topic", "_partition", "_offset")
_FEW, _MANY = 16, 10_000
"""Least and most rows that are copied at once: about as many as there are between two refused ones."""


Copy = Callable[..., None]
"""Copies a record batch into a staging table; with ``apart=True`` in a savepoint."""


class RefusalSearch:
    """The refused rows of one Spark partition. The search may take the time ``within`` after the first one."""

    def __init__(self, part: PartTransaction, within: timedelta, spark_partition: int) -> None:
        self._part, self._within, self._spark_partition = part, within, spark_partition
        self._search: Search | None = None
        self._by_place: dict[Place, RefusedRow] = {}
        self._kept = self._checked = 0
        self._size = _MANY

    def copy(self, sink: str, copy: Copy, batch: pa.RecordBatch) -> None:
        """Copy the rows of a batch, or look for those that are refused.

        Raises `BadRecordError` if the server does not say which row it refuses, or takes all of them in a repeat.
        """
        first: RowRefusedError | None = None
        if self._search is None:
            try:
                copy(batch)
            except RowRefusedError as refused:
                if refused.row is None:
                    raise BadRecordError(str(refused)) from None
                first = refused
                self._part.take_back()
                self._search = Search(self._within, self._report)
            else:
                return
        for row, error in self._refused(self._search, copy, batch):
            topic, partition, offset = (row.column(name)[0].as_py() for name in _PLACE)
            place = topic, partition, offset
            refused_row = RefusedRow(sink=sink, said=error.said, reason=f"{sink}: {error.reason}", place=place)
            self._by_place.setdefault(place, refused_row)
        if first is not None and not self._by_place:
            # The rows before were taken back, so the partition must not be counted.
            raise BadRecordError(str(first))

    def _refused(
        self, search: Search, copy: Copy, batch: pa.RecordBatch
    ) -> Iterator[tuple[pa.RecordBatch, RowRefusedError]]:
        """Copy the rows before and after each refused one, which PostgreSQL names; yield these rows, one at a time."""
        left = [batch]
        while left and search.goes_on(len(self._by_place), self._checked):
            rows = left.pop()
            if rows.num_rows > self._size:
                left.append(rows.slice(self._size))
                rows = rows.slice(0, self._size)
            try:
                copy(rows, apart=True)
            except RowRefusedError as refused:
                if refused.row is None or refused.row >= rows.num_rows:
                    raise BadRecordError(str(refused)) from None
                # Rows before it were not compared with every rule: the server writes several at once.
                left += [part for part in (rows.slice(refused.row + 1), rows.slice(0, refused.row)) if part.num_rows]
                self._size = max(self._size // 2, _FEW)
                self._checked += 1
                yield rows.slice(refused.row, 1), refused
            else:
                self._size = min(self._size * 2, _MANY)
                self._checked += rows.num_rows

    def keep(self) -> list[RefusedRow]:
        """Record the refused rows, so that the next attempt sets their records aside; returns one for each record."""
        rows = list(self._by_place.values())
        if len(rows) > self._kept:
            self._part.refuse(rows[self._kept :])
            self._kept = len(rows)
        return rows

    def _report(self, progress: str) -> None:
        # A job that is killed later need not find them again.
        self.keep()
        log.warning("stage.searches %s partition=%d %s", self._part.ticket, self._spark_partition, progress)
