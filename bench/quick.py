"""The ratios that matter, at small size, beside the stored ones: `make bench-quick`, at most five minutes.

A ratio that became worse by 20 % is marked. The exit code is 0 all the same: a busy machine moves ratios too, and a
person decides. ``--store`` writes the ratios of this run as the ones to compare with; do it on a quiet machine.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.report import machine, ratio

STORED = Path(__file__).with_name("ratios.json")
MOST_SECONDS = 300
WORSE = 0.2
"""The share by which a ratio may become worse before it is marked."""

ROUNDS = 2
_LEAST_SECONDS, _SECONDS_TO_STOP = 20, 90


STATEFUL = "small epoch, stateful against stateless: time"
ONCE_TABLE = "exactly once against at least once, a table: time"
ONCE_BOTH = "exactly once against at least once, a table and a topic: time"
RECIPE = "whole epoch against the Structured Streaming recipe: records per second"
NOOP = "pre-commit against Spark to noop: records per second"
PAGES = "page of a pipeline, after 100,000 epochs against 1,000: time"
WARM = "small epoch on Spark's server against an empty DAG: time"
RATIOS = (STATEFUL, ONCE_TABLE, ONCE_BOTH, RECIPE, NOOP, PAGES, WARM)
MORE_IS_BETTER = {RECIPE, NOOP}


def _stateful() -> Mapping[str, float]:
    from bench import stateful
    from bench.epochs import WHOLE

    times = stateful.measured(1_000, ROUNDS, ("session",))
    one, first = (times[name, "session"][WHOLE] for name in (stateful.STATEFUL, stateful.STATELESS))
    return {STATEFUL: ratio(one, first)}


def _price() -> Mapping[str, float]:
    from bench.price import AT_LEAST, FORMS, ONCE, measured

    times, _ = measured(20_000, ROUNDS)
    table, both = (ratio(times[f"{ONCE}, {words}"], times[f"{AT_LEAST}, {words}"]) for words in FORMS.values())
    return {ONCE_TABLE: table, ONCE_BOTH: both}


def _records() -> Mapping[str, float]:
    from bench import records

    took = records.measured(100_000, ROUNDS).times
    pairs = {RECIPE: (records.STREAMING, records.WHOLE), NOOP: (records.NOOP, records.PRE_COMMIT)}
    return {name: ratio(took[one], took[other]) for name, (one, other) in pairs.items()}


def _small_epoch() -> Mapping[str, float]:
    from bench import small_epoch

    times = small_epoch.measured(ROUNDS, 1, others=False).times
    return {WARM: ratio(times[small_epoch.WARM], times[small_epoch.EMPTY])}


def _pages() -> Mapping[str, float]:
    from bench import pages

    few, many = 1_000, 100_000
    times = pages.measured((few, many), 10 * ROUNDS)
    return {PAGES: ratio(times["one pipeline", many], times["one pipeline", few])}


BENCHES: Mapping[str, Callable[[], Mapping[str, float]]] = {
    "pages": _pages, "stateful": _stateful, "price": _price, "records": _records, "small_epoch": _small_epoch
}  # fmt: skip


def measured() -> dict[str, float]:
    """The ratios by name. A bench that fails or has no time left gives none, and says so."""
    found: dict[str, float] = {}
    deadline = time.monotonic() + MOST_SECONDS
    for bench in BENCHES:
        left = deadline - time.monotonic()
        if left < _LEAST_SECONDS:
            print(f"{bench} was not measured: no time is left", file=sys.stderr, flush=True)
            continue
        try:
            found |= _in_a_process(bench, left)
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            print(f"{bench} was not measured: {error}", file=sys.stderr, flush=True)
    return found


def _in_a_process(bench: str, seconds: float) -> dict[str, float]:
    """The ratios of one bench. A process of its own, because each starts a Spark of its own."""
    command = [sys.executable, "-m", "bench.quick", "--one", bench]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            said, _ = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # An interrupt, so that the bench stops its servers.
            running.send_signal(signal.SIGINT)
            running.wait(_SECONDS_TO_STOP)
            raise
    ratios: dict[str, float] = json.loads(said.splitlines()[-1])
    return ratios


def compared(stored: Mapping[str, float], now: Mapping[str, float]) -> str:
    """The ratios of this run beside the stored ones."""
    lines = ["| ratio | better is | stored | now | |", "|---|---|---:|---:|---|"]
    for name in RATIOS:
        before, after = stored.get(name), now.get(name)
        said, more_is_better = "", name in MORE_IS_BETTER
        if before is not None and after is not None:
            change = after / before - 1 if more_is_better else before / after - 1
            said = f"{'WORSE' if change < -WORSE else 'better' if change > WORSE else 'as before'} ({change:+.0%})"
        figures = " | ".join("-" if figure is None else f"{figure:.2f}" for figure in (before, after))
        lines.append(f"| {name} | {'more' if more_is_better else 'less'} | {figures} | {said} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.quick", description=__doc__)
    parser.add_argument("--store", action="store_true", help=f"write the ratios into {STORED.name}")
    parser.add_argument("--one", choices=BENCHES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(BENCHES[given.one]()))
        return
    now = measured()
    print(f"Measured on {machine()}; load average {os.getloadavg()[0]:.1f}.")
    print(compared(json.loads(STORED.read_text()), now))
    if given.store:
        STORED.write_text(json.dumps({name: round(value, 3) for name, value in now.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
