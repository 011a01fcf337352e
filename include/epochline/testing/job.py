"""A Spark job's writes, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochline.declare.names import QUARANTINE
from epochline.ports import Manifest, PartSum
from epochline.protocol.offsets import PartitionCounts
from epochline.protocol.staging import StagingTicket
from epochline.testing.rows import Key
from epochline.testing.side import Side


class FakeJob(Side):
    """Writes parts and manifests as a Spark job does."""

    def write_part(
        self, ticket: StagingTicket, rows: Mapping[str, list[dict[str, Any]]], seen: Mapping[Key, PartitionCounts]
    ) -> bool:
        """Stage one part and count it per sink. Returns False and counts a fenced write if the attempt is not live."""
        row = self.rows.attempts[ticket.attempt_id]
        if row.attempt.fenced or row.attempt.sealed:
            row.fenced_writes += 1
            return False
        for staged in ticket.written:
            new = rows.get(staged.sink, [])
            if staged in ticket.tables:
                self.rows.staging[staged.table] += new
            part = PartSum(sink=staged.sink, write_id="w", parts=1, rows=len(new))
            row.parts.append((part, dict(seen) if staged.sink == QUARANTINE else {}))
        return True

    def end(self, ticket: StagingTicket) -> None:
        """Write the manifests and the end mark."""
        row = self.rows.attempts[ticket.attempt_id]
        row.manifests = {
            part.sink: Manifest(sink=part.sink, write_id=part.write_id, parts=part.parts, rows=part.rows)
            for part in self._tx.attempts.part_sums(row.attempt)
        }
        self._tx.attempts.change(row.attempt, ended=True)
