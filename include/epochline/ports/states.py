"""Keyed state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateStanding


class States(Protocol):
    """Keyed state: what its tables hold, and what epochs left in them."""

    def standings(self, pipeline: Pipeline) -> Mapping[str, StateStanding]:
        """Content of each state table now, and as an epoch left it. Locks the tables until the transaction ends."""

    def last_committed(self, pipeline: str) -> int | None:
        """Id of the pipeline's last committed epoch; None before the first commit."""

    def leave(self, pipeline: Pipeline, epoch_id: int) -> None:
        """Record the present content of every state table as what the epoch left."""
