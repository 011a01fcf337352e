"""``python -m tests.nemesis``: break a cluster at random for an hour, then prove that nothing was lost or doubled.

Prints the seed; the same seed and arguments make the same schedule of faults. Exit code 0: every snapshot was whole,
each record that the producer saw acknowledged is in every sink once, and enough epochs and faults were seen for that to
mean something.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.crash.reliability import commit_of_tree
from tests.nemesis.report import enough, page, summary, tables
from tests.nemesis.run import attack

RECORDS_PER_HOUR = 10_000_000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long faults are made (default 60)")
    parser.add_argument("--seed", type=int, help="of the schedule of faults; printed; by default a new one")
    parser.add_argument("--records", type=int, help="how many are produced; by default 10 million for an hour")
    parser.add_argument("--report", type=Path, help="write the result to this Markdown page, and its tables beside it")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    records = options.records or round(RECORDS_PER_HOUR * options.minutes / 60)
    print(f"seed {seed}, {options.minutes:g} minutes, {records:,} records", flush=True)

    home = Path(tempfile.mkdtemp(prefix="epochline-nemesis-"))
    result = attack(home, seed=seed, seconds=options.minutes * 60, records=records)
    print(tables(result), summary(result), sep="\n", flush=True)
    if missed := enough(result):
        print(*(f"NOT PROVEN: {one}" for one in missed), f"logs are kept in {home}", sep="\n", flush=True)
        return 1
    if options.report:
        options.report.write_text(page(result, commit_of_tree()))
        (options.report.parent / "data" / "soak.txt").write_text(tables(result))
    shutil.rmtree(home, ignore_errors=True)
    print("EXACT", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
