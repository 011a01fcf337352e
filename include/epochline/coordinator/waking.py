"""Look for records that wait, to start a run. A look changes nothing, and a plan decides what is read (INV-8)."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from epochline.declare.source import KafkaSource
from epochline.ports import Ledger, OffsetSource
from epochline.protocol.offsets import TopicPartition
from epochline.protocol.waking import is_abandoned, records_wait

ASK_AGAIN_SECONDS = 60.0
"""How long an unchanged source is taken to be planned. Only a restore or an operator moves heads back."""

Ends = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a look has to know of a pipeline."""

    pipeline: str
    topics: KafkaSource
    minimum_interval: timedelta
    """Least time between the pipeline's last commit and a waking."""


@dataclass(slots=True)
class Lookout:
    """What earlier looks found: the ends up to which a pipeline is planned. Losing it costs a question to the ledger.

    ``clock`` gives seconds that never go back.
    """

    clock: Callable[[], float] = time.monotonic
    _planned: dict[Watched, tuple[float, Ends]] = field(default_factory=dict)

    def is_planned(self, one: Watched, read: Ends) -> bool:
        """Whether the ledger said lately that a plan has everything up to these ends."""
        asked_at, planned = self._planned.get(one, (0.0, {}))
        return planned == read and self.clock() - asked_at < ASK_AGAIN_SECONDS

    def note_planned(self, one: Watched, read: Ends) -> None:
        """Remember that everything up to these ends is planned."""
        self._planned[one] = (self.clock(), read)


def look(ledger: Ledger, source: OffsetSource, watched: Sequence[Watched], lookout: Lookout) -> dict[str, int]:
    """Find the pipelines for which a run would find something to do now.

    While nothing is produced, this is one question to Kafka for all pipelines, and none to the ledger.

    Returns:
        Per pipeline that is due, the highest epoch id that the ledger gave, 0 if none.

    Raises:
        SourceError, LedgerError: Kafka or the ledger does not answer, or refuses.
    """
    ends = source.readable_ends([candidate.topics for candidate in watched])
    due: dict[str, int] = {}
    for candidate in watched:
        read = {tp: end for tp, end in ends.items() if candidate.topics.reads(tp.topic)}
        if not read or lookout.is_planned(candidate, read):
            continue
        last_epoch_id = _last_epoch_if_due(ledger, candidate, read, lookout)
        if last_epoch_id is not None:
            due[candidate.pipeline] = last_epoch_id
    return due


def _last_epoch_if_due(ledger: Ledger, candidate: Watched, read: Ends, lookout: Lookout) -> int | None:
    name = candidate.pipeline
    with ledger.transaction() as tx:
        standing = tx.operators.standing(name)
        if standing.paused is not None or standing.dropped is not None:
            return None
        row = tx.epochs.pipeline(name)
        if row is None:
            return 0
        unfinished = tx.epochs.unfinished(name)
        if unfinished is not None and not is_abandoned(unfinished):
            return None
        if unfinished is None and not records_wait(tx.chain.heads(name, row.generation), read):
            lookout.note_planned(candidate, read)
            return None
        if tx.history.pause_left(name, candidate.minimum_interval) > timedelta(0):
            return None
        return row.last_epoch_id
