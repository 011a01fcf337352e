"""Whether committed ranges form a chain (INV-1)."""

from collections.abc import Sequence


def chain_breaks(ranges: Sequence[tuple[int | None, int]]) -> list[str]:
    """List the breaks in the chain of committed ranges ``(start, until)`` of one partition (INV-1).

    The origin has start None. An empty list means that the chain is whole.
    """
    breaks: list[str] = []
    origins = [until for start, until in ranges if start is None]
    if len(origins) != 1:
        breaks.append(f"{len(origins)} origins, one is needed")
        return breaks
    head = origins[0]
    for start, until in sorted((s, u) for s, u in ranges if s is not None):
        if start != head:
            breaks.append(f"{'gap' if start > head else 'overlap'} at [{head}, {start})")
        if until <= start:
            breaks.append(f"empty or backward range [{start}, {until})")
        head = until
    return breaks
