"""RestartDemo without state: its position is a variable, so that every restart forgets it (E8).

**Not a mode of the product**: beside `epochline examples run restart`, it shows what a lost position repeats.
"""

from __future__ import annotations

from collections.abc import Iterator

RESTARTS = 3
_EVERY = 5


def run() -> Iterator[int]:
    """The numbers that are sent until the restart strategy gives up."""
    for _ in range(1 + RESTARTS):
        offset = 0
        while True:
            offset += 1
            yield offset
            if offset % _EVERY == 0:
                break  # the program's exception


if __name__ == "__main__":
    for number in run():
        print(number)
