"""Keyed state in memory."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateDigest, StateStanding
from epochline.protocol.epoch import EpochState
from epochline.testing.side import Side


def _digest_of(rows: Sequence[Mapping[str, Any]]) -> StateDigest:
    return StateDigest(keys=len(rows), digest=zlib.crc32(repr(rows).encode()))


class FakeStates(Side):
    """Implements `epochline.ports.States`."""

    def standings(self, pipeline: Pipeline) -> Mapping[str, StateStanding]:
        found = {}
        for state in pipeline.states:
            rows = self.rows.targets[state.table]
            left_by, left = self.rows.states.get((pipeline.name, state.table), (None, None))
            found[state.table] = StateStanding(now=_digest_of(rows), left=left, left_by=left_by)
        return found

    def last_committed(self, pipeline: str) -> int | None:
        epochs = self._tx.epochs.of(pipeline)
        return max((epoch.epoch_id for epoch in epochs if epoch.state is EpochState.COMMITTED), default=None)

    def leave(self, pipeline: Pipeline, epoch_id: int) -> None:
        for state in pipeline.states:
            self.rows.states[pipeline.name, state.table] = epoch_id, _digest_of(self.rows.targets[state.table])
