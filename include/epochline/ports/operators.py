"""What operators decided and did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from epochline.ports.epochs import PipelineRow

PAUSE_AFTER_FAILURES = "pause after failures"
PAUSE_BEHIND = "pause behind"
"""The action that a pipeline takes by itself; its row notes under ``aborts`` how many there had ever been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an operator decided about a pipeline: who, when, why."""

    by: str
    at: datetime
    reason: str

    def __str__(self) -> str:
        return f"by {self.by} at {self.at:%Y-%m-%d %H:%M:%S %Z} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """Whether a pipeline is paused or dropped, and by whose decision."""

    paused: Decision | None = None
    dropped: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What an operator did: who, when, why, and what was so before and after, as JSON."""

    pipeline: str
    action: str
    actor: str
    reason: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    epoch_id: int | None = None
    action_id: int | None = None
    """Given by the ledger; ids of one pipeline increase."""
    acted_at: datetime | None = None


class Operators(Protocol):
    """What operators did to a pipeline. Callers hold the pipeline's row lock where they change something."""

    def standing(self, pipeline: str) -> PipelineStatus:
        """Whether the pipeline is paused or dropped."""

    def pause(self, pipeline: str, by: str, reason: str) -> None:
        """From here on no epoch is planned."""

    def resume(self, pipeline: str) -> None:
        """Undo `pause`."""

    def drop(self, pipeline: str, by: str, reason: str) -> None:
        """Mark the pipeline dropped, for good, and release its targets."""

    def begin_generation(self, pipeline: str, cluster_id: str | None) -> PipelineRow:
        """Count the generation up: what was committed before is kept and superseded; the cluster is noted anew."""

    def record(self, row: ActionRow) -> ActionRow:
        """Write an action down; it is never changed."""

    def actions(self, pipeline: str) -> Sequence[ActionRow]:
        """What was done to the pipeline, the newest last."""
