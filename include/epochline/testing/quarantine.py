"""Quarantined records in memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from epochline.ports import Claims, Selection
from epochline.protocol.epoch import Epoch
from epochline.protocol.staging import StagedTable
from epochline.testing.side import Side


def _quarantine_key(row: Mapping[str, Any]) -> tuple[int, str, int, int]:
    return row["_generation"], row["topic"], row["partition"], row["offset"]


class FakeQuarantine(Side):
    """Implements `epochline.ports.Quarantine`."""

    def selected(self, pipeline: str, selection: Selection) -> Claims:
        return Counter((row["topic"], row["partition"]) for row in self._selected(pipeline, selection))

    def claim_records(self, epoch: Epoch, selection: Selection) -> int:
        keys = [_quarantine_key(row) for row in self._selected(epoch.pipeline, selection)]
        self.rows.requeue_claims[epoch.pipeline, epoch.epoch_id] = keys
        return len(keys)

    def claims(self, epoch: Epoch) -> Claims:
        return Counter((row["topic"], row["partition"]) for row in self._claimed(epoch))

    def claims_are_free(self, epoch: Epoch) -> bool:
        return all(row.get("requeued_by") is None for row in self._claimed(epoch))

    def requeue(self, staged: StagedTable, epoch: Epoch) -> tuple[int, int]:
        failed = {(row["topic"], row["partition"], row["offset"]): row for row in self.rows.staging[staged.table]}
        done = stay = 0
        for row in self._claimed(epoch):
            again = failed.get((row["topic"], row["partition"], row["offset"]))
            if row.get("requeued_by") is not None:
                continue
            if again is not None:
                row["reason"], stay = again["reason"], stay + 1
            else:
                row["requeued_by"], done = epoch.epoch_id, done + 1
        return done, stay

    def _selected(self, pipeline: str, selection: Selection) -> list[dict[str, Any]]:
        wanted = {
            "_pipeline": pipeline, "_generation": selection.generation, "_epoch": selection.epoch_id,
            "topic": selection.topic, "partition": selection.partition, "offset": selection.offset,
        }  # fmt: skip
        like = None if selection.reason is None else re.escape(selection.reason).replace("%", ".*").replace("_", ".")
        return [
            row
            for row in self.rows.quarantine
            if row.get("requeued_by") is None
            and all(value is None or row.get(name) == value for name, value in wanted.items())
            and (like is None or re.fullmatch(like, row["reason"], re.DOTALL))
        ]

    def _claimed(self, epoch: Epoch) -> list[dict[str, Any]]:
        keys = set(self.rows.requeue_claims.get((epoch.pipeline, epoch.epoch_id), ()))
        return [row for row in self.rows.quarantine if _quarantine_key(row) in keys]
