"""``python -m tests.model --report docs/model.md``: search every world, take every guard away, and write what was found.

The page has the totals and the guards. docs/data/model.json has each world, and the shortest way to a broken invariant
without each guard.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.crash.reliability import commit_of_tree
from tests.model.guards import MUTANTS, TOPIC_MUTANTS, Mutant
from tests.model.protocol import FAULTS, Bounds
from tests.model.search import Found, search, search_without
from tests.model.worlds import WORLDS


def main() -> int:
    """Exit code 1: an invariant is broken, or a missing guard goes unnoticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument(
        "--report", type=Path, help="the page to write if everything is as it should be; its data go beside it"
    )
    options = parser.parse_args()
    worlds, mutants = [], []
    for world in WORLDS:
        worlds.append(search(world))
        print(worlds[-1], flush=True)
    for mutant in (*MUTANTS, *TOPIC_MUTANTS):
        found = search_without(mutant, unconstrained=mutant.unconstrained)
        mutants.append((mutant, found))
        way = found.counterexample
        print(f"without {mutant}: {'nobody noticed' if way is None else way[-1]}", flush=True)
    wrong = [one.counterexample for one in worlds if one.counterexample is not None]
    unnoticed = [mutant for mutant, found in mutants if found.counterexample is None]
    for way in wrong:
        print("\n".join(way))
    if options.report and not wrong and not unnoticed:
        searched = data(worlds, mutants)
        data_of(options.report).write_text(json.dumps(searched, indent=1) + "\n")
        options.report.write_text(page(searched))
    return 1 if wrong or unnoticed else 0


def data_of(page: Path) -> Path:
    return page.parent / "data" / "model.json"


def data(worlds: list[Found], mutants: list[tuple[Mutant, Found]]) -> dict[str, Any]:
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit_of_tree(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "worlds": [
            {
                "world": found.world.name,
                "runs": found.world.runs,
                "records per partition": list(found.world.records),
                "produced on the way": found.world.produced,
                "faults, at most": found.world.most_faults,
                "of which kinds": kinds(found.world),
                "states": found.states,
                "transitions": found.transitions,
                "contents of the ledger's tables": found.tables,
                "seconds": round(found.seconds, 1),
            }
            for found in worlds
        ],
        "without a guard": [
            {
                "guard": mutant.name,
                "where": mutant.where,
                "taken away": " ".join(mutant.old.split()),
                "and the constraints of the chain": mutant.unconstrained,
                "shortest way": list(found.counterexample or ()),
            }
            for mutant, found in mutants
        ],
    }


_HEAD = """\
# The model

This page says what a search over all states of the protocol found. `make model` writes it; do not edit it.

The search covers, within the bounds below, everything that two Airflow runs of one pipeline, their processes, an
operator, a janitor and a bad network can do, in any order.
Each step is a step of the product's own use cases, transition table and planning code.
In every state the search checks the invariants of [the guarantee](guarantee.md). From every state, later runs must be
able to commit everything without a person ([I7](requirements.md#after-a-fault)).

In some worlds every run also publishes, through the product's own sink and sender, to a model of Kafka's transactions.
A `read_committed` consumer must see each committed epoch whole, in order and once.
"""

_BOUNDS = """\
The bounds: two partitions of one topic, one or two runs, one attempt per try, and a number of faults in any
combination. [The data](data/model.json) have each world with its bounds and its states.

## Without a guard

A guard is a piece of the product's text that an invariant depends on. The search takes away one guard at a time, and
must find the shortest way to a broken invariant.
A test on real servers (`tests/model/test_guards_on_postgres.py`, `tests/integration/test_topic_guards.py`) must fail
without the guard, too.
"""


def page(searched: Mapping[str, Any]) -> str:
    states = sum(world["states"] for world in searched["worlds"])
    ways = [mutant["shortest way"] for mutant in searched["without a guard"]]
    lines = [
        _HEAD,
        f"Run on {searched['date']}, commit `{searched['commit']}`, {searched['machine']}:"
        f" {states:,} states in {len(searched['worlds'])} worlds, no invariant broken.",
        "",
        _BOUNDS,
        f"Without each of {len(ways)} guards the search found a broken invariant, after at most"
        f" {max(len(way) - 1 for way in ways)} steps. The data have each guard, and the way step by step.",
    ]
    return "\n".join([*lines, ""])


def kinds(world: Bounds) -> str:
    return ", ".join(one for one in FAULTS if one in world.faults) if world.most_faults else "none"


if __name__ == "__main__":
    sys.exit(main())
