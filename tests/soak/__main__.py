"""``python -m tests.soak``: break PostgreSQL, Kafka and plain tasks at random, then prove that nothing was lost or doubled.

Many epochs a minute, because a consumer takes Spark's place; `tests.nemesis` breaks Airflow and Spark for an hour.

Prints the seed; the same seed and arguments make the same schedule of faults. Exit code 0: every invariant held, every
record is in the target once, and enough epochs and faults were seen for that to mean something.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak.report import enough, summary, tables
from tests.soak.soak import Soak


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults are made (default 10)")
    parser.add_argument("--seed", type=int, help="of the schedule of faults; printed; by default a new one")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}, {options.minutes:g} minutes", flush=True)

    home = Path(tempfile.mkdtemp(prefix="epochline-soak-"))
    soak = Soak(home, seed=seed, seconds=options.minutes * 60)
    try:
        result = soak.run()
    finally:
        soak.down()
    print(tables(result), summary(result), sep="\n", flush=True)
    if missed := enough(result):
        print(*(f"NOT PROVEN: {one}" for one in missed), f"logs are kept in {home}", sep="\n", flush=True)
        return 1
    shutil.rmtree(home, ignore_errors=True)
    print("EXACT", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
