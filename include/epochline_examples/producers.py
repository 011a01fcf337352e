"""Producers of endless lines on standard output, for `epochline feed -`.

``PYTHONPATH=include python -m epochline_examples.producers orders | epochline feed - --topic order_windows``
"""

import argparse
import itertools
import json
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

_FIRST_VISIT = datetime(2019, 9, 15, 10, tzinfo=UTC)


def visits() -> Iterator[str]:
    """One visit per second of four addresses."""
    for second in itertools.count():
        for last in range(1, 5):
            yield f"{_FIRST_VISIT + timedelta(seconds=second):%Y-%m-%d_%H:%M:%S} 192.168.1.{last}"


def orders() -> Iterator[str]:
    """Orders of three users, with the current time."""
    while True:
        yield json.dumps(
            {
                "orderId": str(uuid.uuid4()),
                "userId": random.randrange(3),  # noqa: S311 - not a secret
                "money": random.randint(0, 100),  # noqa: S311
                "createTime": round(time.time() * 1000),
            }
        )


PRODUCERS: dict[str, Callable[[], Iterator[str]]] = {
    "words": lambda: itertools.repeat("hello world"),
    "checkpoints": lambda: itertools.repeat("hello flink"),
    "numbers": lambda: map(str, itertools.count(1)),
    "visits": visits,
    "orders": orders,
}


def main() -> None:
    """Write lines until there are enough, or until the reader closes the pipe."""
    parser = argparse.ArgumentParser(prog="python -m epochline_examples.producers", description=__doc__)
    parser.add_argument("name", choices=PRODUCERS, help="the producer")
    parser.add_argument("--count", type=int, default=1000, help="number of lines (default: 1000)")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two lines (default: 0)")
    options = parser.parse_args()
    for line in itertools.islice(PRODUCERS[options.name](), options.count):
        print(line, flush=bool(options.pause))
        time.sleep(options.pause)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.stderr.close()
