"""The mirror: what a consumer group holds of a pipeline, for monitors and as evidence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredOffset:
    """A consumer group's offset for a partition, and the epoch that mirrored it, if one did."""

    offset: int
    generation: int | None = None
    epoch_id: int | None = None
    token: str | None = None
    """Of the attempt that committed the epoch; None from versions that kept no token."""
