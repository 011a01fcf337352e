"""``python -m tests.model --report docs/model.md``: search every world, take every guard away, and write what was found."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.crash.reliability import commit_of_tree
from tests.model.guards import MUTANTS, TOPIC_MUTANTS, Mutant
from tests.model.protocol import FAULTS, World
from tests.model.search import Found, search, search_without
from tests.model.worlds import WORLDS


def main() -> int:
    """Exit code 1: an invariant is broken, or a missing guard goes unnoticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--report", type=Path, help="the page to write where everything is as it should be")
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
        options.report.write_text(page(worlds, mutants))
    return 1 if wrong or unnoticed else 0


def page(worlds: list[Found], mutants: list[tuple[Mutant, Found]]) -> str:
    """The page of the documentation."""
    lines = [
        "# The model",
        "",
        "Written by `make model`; never by hand.",
        "",
        "A breadth-first search, within the bounds below, over what two Airflow runs of one pipeline, their processes, an"
        " operator, a janitor and a bad network can do in any order. Each step is a step of the product's own use cases, transition"
        " table and planning code; in every state the invariants of [the guarantee](guarantee.md) are checked, and from"
        " every state later runs must be able to commit everything without a human (I7).",
        "",
        "In worlds with a topic every run publishes, through the product's own sink and sender, to a model of Kafka's"
        " transactions: producer epochs that fence, commits whose answer is lost, and what a read_committed consumer"
        " sees. It must see each committed epoch whole, in order, at most once, and in the end exactly once; a receipt"
        " must not say more than that.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit_of_tree()}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}: {sum(one.states for one in worlds)} states, no invariant broken.",
        "",
        "Bounds: two partitions of one topic, one or two runs, an attempt for each try, and the faults of a world in any"
        " combination up to their number. A run that is not started again cannot act twice, so the number of attempts is"
        " bounded by the number of faults.",
        "",
        "| world | runs | records per partition | produced on the way | faults, at most | of which kinds | states |"
        " transitions | contents of the ledger's tables | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.world.name} | {one.world.runs} | {', '.join(map(str, one.world.records))} | {one.world.produced} |"
        f" {one.world.most_faults} | {kinds(one.world)} | {one.states} | {one.transitions} | {one.tables} |"
        f" {one.seconds:.1f} |"
        for one in worlds
    ]
    lines += [
        "",
        "## Without a guard",
        "",
        "Each guard is taken away from the product's own text, one at a time. The model must find the shortest way to a"
        " broken invariant; a test on real servers (`tests/model/test_guards_on_postgres.py`,"
        " `tests/integration/test_topic_guards.py`) must fail without it, too.",
    ]
    for mutant, found in mutants:
        lines += ["", f"### {mutant.name[0].upper()}{mutant.name[1:]}", ""]
        lines += [f"In `{mutant.where}`, `{' '.join(mutant.old.split())}` is taken away"
                  f"{', and the constraints of the chain with it' if mutant.unconstrained else ''}.", ""]  # fmt: skip
        lines += ["```text", *(found.counterexample or ()), "```"]
    return "\n".join([*lines, ""])


def kinds(world: World) -> str:
    """The faults of a world, in the order of the protocol's list."""
    return ", ".join(one for one in FAULTS if one in world.faults) if world.most_faults else "none"


if __name__ == "__main__":
    sys.exit(main())
