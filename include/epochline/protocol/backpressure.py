"""Adapts the record limit of an epoch to how long the last one took (B1). Pure."""

from __future__ import annotations

from datetime import timedelta

from epochline.protocol.epoch import Epoch
from epochline.protocol.quantities import duration

_LEAST_SHARE = 100
_MOST_CHANGE = 4
_TICK = timedelta(microseconds=1)


def adapted_limit(most: int, target: timedelta, newest: Epoch | None) -> int:
    """The record limit with which the next epoch takes about ``target`` from its plan to its commit.

    The newest epoch's records are multiplied by ``target`` / (the time it took), at most by 4 and at least by 1/4. As
    an epoch has a fixed cost beside that of its records, the limit approaches the right one from one side. An epoch
    that read less than its limit and was in time says nothing, and neither does one that needed several attempts.

    The result lies between a hundredth of ``most``, the declared limit, and ``most``: a target below an epoch's fixed
    cost would otherwise end at one record per epoch, and the backlog would grow for ever. ``newest`` is the newest
    committed epoch that was planned without an interval.
    """
    if newest is None or newest.committed_at is None:
        return most
    before = newest.record_limit or most
    took = newest.committed_at - newest.planned_at
    limit: float = before
    if newest.attempt == 1 and (took > target or newest.counts.read >= before):
        limit = newest.counts.read * min(_MOST_CHANGE, max(1 / _MOST_CHANGE, target / max(took, _TICK)))
    return min(most, max(1, most // _LEAST_SHARE, int(limit)))


def missed_interval(interval: timedelta, newest: Epoch | None) -> str | None:
    """Say that the newest committed epoch took longer than the interval between epochs; None if it did not (K8)."""
    if newest is None or newest.committed_at is None:
        return None
    took = newest.committed_at - newest.planned_at
    if took <= interval:
        return None
    return (
        f"the interval of {duration(interval.total_seconds())} was not kept: {newest} took"
        f" {duration(took.total_seconds())} from its plan to its commit"
    )
