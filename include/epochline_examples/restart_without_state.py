"""A restart demo that keeps its position in a variable, so that every restart loses it.

**Not a mode of the product**: it shows what a lost position repeats. `epochline examples run restart` repeats nothing.
"""

from collections.abc import Iterator

RESTARTS = 3
_EVERY = 5


def run() -> Iterator[int]:
    """Yield the numbers that are sent until the restart strategy gives up."""
    for _ in range(1 + RESTARTS):
        offset = 0
        while True:
            offset += 1
            yield offset
            if offset % _EVERY == 0:
                break  # the exception


if __name__ == "__main__":
    for number in run():
        print(number)
