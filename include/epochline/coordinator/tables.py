"""PostgreSQL tables as sinks: the steps of `epochline.protocol.sink` in the epoch's transactions (P4, C6, INV-2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import TargetError
from epochline.ports import Applied, Prepared, Transaction
from epochline.protocol.epoch import Attempt, Epoch
from epochline.protocol.sink import Committable, SinkAttempt, WrittenPart
from epochline.protocol.staging import StagedTable


class TableSink:
    """One table of an epoch whose row is locked in ``tx``. Implements `epochline.protocol.sink.Committing`.

    Its other step, ``write``, is what Spark does in one transaction per part (`epochline.spark.transaction`). Nothing
    commits by itself: whoever opened the transaction does, with every other table, the state and the offsets.
    """

    def __init__(
        self,
        tx: Transaction,
        pipeline: Pipeline,
        table: PostgresTable,
        staged: StagedTable,
        epoch: Epoch,
        attempt: Attempt,
    ) -> None:
        self._tx = tx
        self._pipeline = pipeline
        self._table = table
        self._staged = staged
        self._epoch = epoch
        self._attempt = attempt
        self.applied = Applied(rows=0)
        """What `commit` did to the target."""
        self.prepared = Prepared()
        """What `seal` found in staging."""

    def begin(self, attempt: SinkAttempt) -> None:
        """Nothing: staging tables are made with the attempt, all at once."""

    def seal(self, attempt: SinkAttempt, parts: Sequence[WrittenPart]) -> Mapping[str, Any]:
        """Index, analyze, and find what could not be committed.

        Raises:
            SealRefusedError: the commit could not go on, whatever the rows are.
        """
        self.prepared = self._tx.targets.prepare(self._pipeline, self._table, self._staged, self._epoch)
        return {}

    def commit(self, committable: Committable) -> None:
        """Staging, which was counted before, into the target.

        Raises:
            TargetError: other rows arrived than were sealed, or a staged row is accounted for by nothing.
        """
        self.applied = self._tx.targets.apply(self._pipeline, self._table, self._staged, self._epoch)
        if self._table.mode in ("append", "replace") and self.applied.rows != committable.rows:
            raise TargetError(
                f"{self._epoch}: {committable.rows} rows were sealed for {self._table},"
                f" but {self.applied.rows} arrived: a trigger or rule of the table swallows rows. Nothing was changed."
                " Take it off, or abort the epoch."
            )

    def abort(self, attempt: SinkAttempt) -> None:
        """Drop what the attempt staged in tables, in all of them."""
        self._tx.attempts.drop_staging(self._attempt)

    def recover_and_commit(self, committable: Committable) -> None:
        """Commit: what an earlier process left open, the database has rolled back."""
        self.commit(committable)

    def recover_and_abort(self, attempt: SinkAttempt) -> None:
        """Abort, likewise."""
        self.abort(attempt)

    def notify_complete(self, committable: Committable) -> None:
        """Nothing: the commit was all."""
