"""When records that wait may start a run. Pure. A wrong answer costs an idle run or a wait, never a record (INV-8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from epochline.protocol.epoch import Epoch, EpochKind
from epochline.protocol.offsets import Head, TopicPartition

FIRST_PATIENCE = timedelta(seconds=30)
"""How long a waking is given to lead to an epoch. It covers Airflow's steps up to the plan."""

MOST_PATIENCE = timedelta(minutes=5)


def records_wait(heads: Sequence[Head], ends: Mapping[TopicPartition, int]) -> bool:
    """Whether a plan would find something to do: some partition's readable end is not its head."""
    next_offsets = {head.tp: head.next_offset for head in heads}
    return any(next_offsets.get(tp) != end for tp, end in ends.items())


def is_abandoned(epoch: Epoch) -> bool:
    """Whether the next plan would end this unfinished epoch of a lost run; operators decide approvals and replays."""
    return epoch.lease_expired and epoch.approval != "awaited" and epoch.kind is not EpochKind.REPLAY


@dataclass(slots=True)
class Restraint:
    """Keeps wakings of one pipeline apart: by its interval, and by more while they lead to no epoch."""

    interval: timedelta
    _woken_at: float | None = None
    _last_epoch_id: int | None = None
    _patience: float = 0.0

    def admits(self, last_epoch_id: int, now: float) -> bool:
        """Whether the pipeline may be woken; ``now`` is by a clock that never goes back."""
        if self._woken_at is None:
            return True
        planned = last_epoch_id != self._last_epoch_id
        return now - self._woken_at >= (self.interval.total_seconds() if planned else self._patience)

    def woken(self, last_epoch_id: int, now: float) -> None:
        """Note a waking. If the one before led to no epoch, the next has to wait twice as long."""
        first = max(FIRST_PATIENCE, self.interval).total_seconds()
        most = max(MOST_PATIENCE, self.interval).total_seconds()
        again = self._woken_at is not None and last_epoch_id == self._last_epoch_id
        self._patience = min(2 * self._patience, most) if again else first
        self._woken_at, self._last_epoch_id = now, last_epoch_id
