"""The rows that transforms made for append targets, epoch by epoch: compared by counting.

Several rows may name one place, and aggregated rows name none. So rows are counted under their epoch and place, or
under their epoch and all values.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from psycopg2 import sql

from epochline.audit.counted_rows import CountedRows
from epochline.audit.counted_statement import Comparison, Identity
from epochline.audit.findings import Difference
from epochline.audit.recorded import RecordedEpoch, inexact
from epochline.audit.session import AuditSession
from epochline.declare.columns import STAGED_LINEAGE
from epochline.declare.pipeline import Pipeline
from epochline.postgres.targets.columns import columns_of
from epochline.protocol.staging import StagedTable

_SAMPLE = 1000
_FIRST = 1000
"""Number of the first of these targets in the session; targets that are compared at the end have lower ones."""


class MadeRows:
    """Collects the rows of some epochs of one declaration for append targets with lineage, and compares them."""

    def __init__(
        self, connection: AuditSession, declared: Pipeline, epoch: RecordedEpoch, tables: Sequence[StagedTable],
        compared: Sequence[str],
    ) -> None:  # fmt: skip
        self._connection = connection
        self._declared, self._epoch = declared, epoch
        self._tables = {table.sink: table for table in tables if table.sink in compared}
        self._rows = {sink: self._of(number, sink, ()) for number, sink in enumerate(self._tables)}
        for rows in self._rows.values():
            rows.prepare(())

    def _of(self, number: int, sink: str, epochs: Sequence[int]) -> CountedRows:
        declared = next(target for target in self._declared.targets if target.table == sink)
        with self._connection.snapshot():
            target = columns_of(self._connection, sink)
        wanted = self._epoch.targets[sink]
        exact = [name for name in wanted if name not in inexact(self._declared, declared, wanted)]
        identity = ["_epoch", *(exact if declared.aggregated else STAGED_LINEAGE)]
        how = Comparison(
            declared, target, exact, Identity(columns={name: name for name in identity}, by="key"), _FIRST + number,
            within=sql.SQL("t._epoch = ANY ({})").format(sql.Literal(list(epochs))),
            located=not declared.aggregated,
        )  # fmt: skip
        return CountedRows(self._connection, declared, target, {**self._tables[sink].columns, "_epoch": "bigint"}, how)

    @property
    def sinks(self) -> frozenset[str]:
        """The targets whose rows are collected."""
        return frozenset(self._rows)

    def add(self, sink: str, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add rows of an epoch."""
        epochs = pa.repeat(pa.scalar(epoch_id, pa.int64()), rows.num_rows)
        self._rows[sink].add(rows.append_column("_epoch", epochs))

    def differences(self, epochs: Sequence[int]) -> Iterator[Difference]:
        """Compare the rows of these epochs, whose rows were all added."""
        if not epochs:
            return
        for number, sink in enumerate(self._tables):
            rows = self._of(number, sink, epochs)
            rows.compare()
            yield from rows.told(_SAMPLE, lambda _: None)
