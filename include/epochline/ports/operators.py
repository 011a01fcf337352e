"""What operators decided and did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from epochline.ports.epochs import PipelineRow

PAUSE_AFTER_FAILURES = "pause after failures"
PAUSE_BEHIND = "pause behind"
PAUSE_DOWN = "pause down"
"""Actions that a pipeline takes by itself. The first one's row keeps under ``aborts`` the total of aborts so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an operator decided about a pipeline: who, when, why."""

    by: str
    at: datetime
    reason: str
    command: str | None = None
    """The command that goes on, where it is not ``resume``."""

    def __str__(self) -> str:
        return f"by {self.by} at {self.at:%Y-%m-%d %H:%M:%S %Z} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """Whether a pipeline is paused or dropped, and by whose decision."""

    paused: Decision | None = None
    dropped: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What an operator did: who, when, why, and the values before and after, as JSON."""

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
    """What operators did to a pipeline. Callers that change something hold the pipeline's row lock."""

    def standing(self, pipeline: str) -> PipelineStatus:
        """Whether the pipeline is paused or dropped."""

    def pause(self, pipeline: str, by: str, reason: str, command: str | None = None) -> None:
        """Stop planning epochs."""

    def resume(self, pipeline: str) -> None:
        """Undo `pause`."""

    def drop(self, pipeline: str, by: str, reason: str) -> None:
        """Mark the pipeline dropped, permanently, and release its targets."""

    def begin_generation(self, pipeline: str, cluster_id: str | None) -> PipelineRow:
        """Increment the generation and replace the cluster. Commits of earlier generations are kept, as superseded."""

    def record(self, row: ActionRow) -> ActionRow:
        """Write an action down. It never changes."""

    def actions(self, pipeline: str) -> Sequence[ActionRow]:
        """Actions on the pipeline, oldest first."""
