"""The order in which rows are written that pass values on which only one row may hold."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Rows by number, in the order in which they can be written."""

    before: tuple[int, ...]
    """Each of these waits for earlier ones only."""
    circle: tuple[int, ...]
    """These wait for each other: no order fits, one of them must give its value up first."""
    after: tuple[int, ...]
    """These wait for the circle, and none of the circle waits for them."""


def turns(waits: Iterable[tuple[int, int]]) -> Turns:
    """Order rows so that each is written after the rows that it waits for.

    Of each pair of rows, the first takes a value that the second still holds.
    """
    ahead: dict[int, set[int]] = defaultdict(set)
    behind: dict[int, set[int]] = defaultdict(set)
    for taker, holder in waits:
        ahead[taker].add(holder)
        behind[holder].add(taker)
    left = {*ahead, *behind}
    before = _peeled(left, ahead, behind)
    after = _peeled(left, behind, ahead)
    return Turns(before=tuple(before), circle=tuple(sorted(left)), after=tuple(reversed(after)))


def _peeled(left: set[int], needs: dict[int, set[int]], needed_by: dict[int, set[int]]) -> list[int]:
    """Take the rows out of ``left`` that need none of it, one after the other; returns them in this order."""
    count = {row: len(needs.get(row, set()) & left) for row in left}
    free = sorted(row for row in left if not count[row])
    order: list[int] = []
    while free:
        row = free.pop()
        order.append(row)
        left.remove(row)
        for other in needed_by.get(row, set()) & left:
            count[other] -= 1
            if not count[other]:
                free.append(other)
    return order
