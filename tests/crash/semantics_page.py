"""docs/semantics.md and its data: written by tests/crash/test_semantics.py, one semantics at a time, and read back."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import NamedTuple

from tests.crash.reliability import ROOT, commit_of_tree
from tests.crash.split_commit import SEMANTICS, Semantics

PAGE = ROOT / "docs" / "semantics.md"
DATA = ROOT / "docs" / "data" / "semantics.tsv"
SINKS = ("append", "upsert", "add", "topic", "files")

Outcomes = Mapping[str, str]
"""By sink: ``exact``, ``lost``, ``doubled``, or both."""

_HEAD = """\
# Four semantics, killed everywhere

This page says what weaker semantics than exactly once lose or double in each kind of sink.
`make semantics` writes it; do not edit it.

One epoch of 40 records goes into every kind of sink: tables of mode append, upsert and add, a topic, and files.
SIGKILL ends the process that commits and publishes the epoch, at each place between two calls on a server, and the
process is started again. Then each sink is compared with what was produced.
The places begin where the commit writes its first row. Before that, a rollback takes everything back.

Only *exactly once* is a mode of the product. `tests/crash/split_commit.py` makes the others: it splits
the product's one transaction and uses the product's own sinks.
A sink that recognises a repeat stays exact under at least once: an upsert by its key, files by the name of their folder.
[Reliability](reliability.md) has the kills of all other tasks.

## What can happen
"""


class Places(NamedTuple):
    """Places that follow each other and have one outcome: a line of the data, whose columns have these names."""

    semantics: str
    first: str
    last: str
    places: str
    append: str
    upsert: str
    add: str
    topic: str
    files: str
    date: str
    commit: str


def grouped(semantics: Semantics, killed: Sequence[tuple[str, Outcomes]]) -> list[Places]:
    """What the kills of one semantics gave, in the order of the places."""
    run = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit_of_tree()}
    found = []
    for outcomes, group in groupby(killed, key=lambda kill: {sink: kill[1][sink] for sink in SINKS}):
        names = [place for place, _ in group]
        found.append(Places(semantics, names[0], names[-1], str(len(names)), **outcomes, **run))
    return found


def parsed(data: str) -> list[Places]:
    return [Places(*line.split("\t")) for line in data.splitlines()[1:]]


def written(places: Sequence[Places]) -> str:
    return "\n".join("\t".join(line) for line in (Places._fields, *places)) + "\n"


def rendered(places: Sequence[Places]) -> str:
    """The page: what can happen to each sink under each semantics, wherever the process is killed."""
    lines = [_HEAD, f"| | {' | '.join(SINKS)} | killed at | run |", f"|---|{'---|' * len(SINKS)}---:|---|"]
    for semantics in SEMANTICS:
        some = [place for place in places if place.semantics == semantics]
        if some:
            possible = outcomes_of(some)
            cells = [", ".join(sorted(possible[sink], key=("exact", "lost", "doubled").index)) for sink in SINKS]
            count = sum(int(place.places) for place in some)
            run = f"{some[0].date}, `{some[0].commit}`"
            lines.append(f"| {title(semantics)} | {' | '.join(cells)} | {count} places | {run} |")
    lines += ["", "[The data](data/semantics.tsv) have the outcome at each place."]
    return "\n".join(lines) + "\n"


def outcomes_of(places: Sequence[Places]) -> dict[str, set[str]]:
    return {sink: {getattr(place, sink) for place in places} for sink in SINKS} if places else {}


def title(semantics: Semantics) -> str:
    return semantics.replace("_", " ").capitalize()


def read() -> list[Places]:
    return parsed(DATA.read_text()) if DATA.exists() else []


def write(semantics: Semantics, killed: Sequence[tuple[str, Outcomes]]) -> None:
    kept = read()
    by_semantics = {
        name: grouped(name, killed) if name == semantics else [place for place in kept if place.semantics == name]
        for name in SEMANTICS
    }
    places = [place for some in by_semantics.values() for place in some]
    DATA.write_text(written(places))
    PAGE.write_text(rendered(places))
