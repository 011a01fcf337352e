"""The mirror: what a consumer group holds of a pipeline, for monitors and as evidence."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredOffset:
    """A consumer group's offset for a partition, and the epoch that mirrored it, if one did."""

    offset: int
    generation: int | None = None
    epoch_id: int | None = None
    token: str | None = None
    """Token of the attempt that committed the epoch; None from versions that kept no token."""
    number: int | None = None
    """Number of the write, which the ledger gave; None from versions that gave no number."""


Mirrored = Mapping[tuple[str, int], MirroredOffset]

_EXPIRY_SLACK = 0.9
"""Part of a group's retention after which its offsets may be gone: two clocks measure it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMirror:
    """The newest confirmed write of the heads to the consumer group; ``after`` numbers those that may be later."""

    number: int
    generation: int
    epoch_id: int
    topics: Collection[str]
    age: timedelta
    after: Collection[int] = ()

    def older(self, mirrored: Mirrored) -> dict[tuple[str, int], MirroredOffset]:
        """What the group shows of an earlier write: Kafka went back in time."""
        return {
            key: position
            for key, position in mirrored.items()
            if key[0] in self.topics and position.epoch_id is not None and self._is_older(position)
        }

    def _is_older(self, position: MirroredOffset) -> bool:
        if position.number is None:
            return (position.generation or 0, position.epoch_id or 0) < (self.generation, self.epoch_id)
        return position.number < self.number and position.number not in self.after

    def missing(self, mirrored: Mirrored) -> list[str]:
        """The topics of inputs of which the group shows nothing: Kafka deletes a topic's offsets with it."""
        shown = {_input_of(topic) for topic, _ in mirrored}
        return sorted(topic for topic in self.topics if _input_of(topic) not in shown)

    def may_have_expired(self, retention: timedelta | None) -> bool:
        """Whether Kafka deletes the offsets of a group after this time. If Kafka does not say how long, it may."""
        return retention is None or self.age >= _EXPIRY_SLACK * retention


def _input_of(topic: str) -> str:
    """The input of a topic in the ledger; a single source has none."""
    name, slash, _ = topic.partition("/")
    return name if slash else ""
