"""Where logs end and how long Kafka keeps them, for people. No plan decides by it."""

from collections.abc import Sequence
from dataclasses import dataclass

from epochline.protocol.offsets import TopicPartition
from epochline.protocol.planning import SourceView


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The settings of a topic by which Kafka deletes records; -1 means that there is no limit."""

    cleanup_policy: str
    """``delete``, ``compact`` or both, with a comma between them."""
    milliseconds: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The offsets between which a ``read_committed`` consumer finds the records of a partition."""

    tp: TopicPartition
    log_start: int
    last_stable: int
    retention: Retention | None = None
    """None if Kafka was not asked, or may not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLog:
    """The positions ``[start, end)`` that a partition holds now, for audits.

    ``identity`` is its topic's id, or the identity of a custom source's partition. In a compacted log, records in
    between may be missing.
    """

    identity: str
    start: int
    end: int
    compacted: bool = False


def log_ends_of(view: SourceView) -> Sequence[LogEnd]:
    """The ends of the logs that a plan saw."""
    return [LogEnd(tp=one.tp, log_start=one.log_start, last_stable=one.known_end) for one in view.partitions]
