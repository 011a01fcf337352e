"""How the ranges of an epoch are shared among tasks. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from epochline.protocol.offsets import OffsetRange, PlannedRange


def shared(ranges: Sequence[PlannedRange], tasks: int) -> tuple[tuple[PlannedRange, ...], ...]:
    """Cut ranges into shares of equal numbers of offsets, at most one per task, in the order of the ranges.

    The same arguments give the same shares. Every offset is in exactly one share, and no share is empty.
    """
    left = sum(len(one.range) for one in ranges)
    shares: list[tuple[PlannedRange, ...]] = []
    rest = list(reversed(ranges))
    for tasks_left in range(min(tasks, left), 0, -1):
        wanted = -(-left // tasks_left)
        left -= wanted
        share: list[PlannedRange] = []
        while wanted:
            one = rest.pop()
            cut = min(one.range.start + wanted, one.range.until)
            share.append(replace(one, range=OffsetRange(start=one.range.start, until=cut)))
            if cut < one.range.until:
                rest.append(replace(one, range=OffsetRange(start=cut, until=one.range.until)))
            wanted -= cut - one.range.start
        shares.append(tuple(share))
    return tuple(shares)
