"""What a soak says at its end, from the result alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.soak.soak import Result

DRAIN_SECONDS = 180.0
"""Flink's bar for a job to be healthy again after the last fault (I7)."""


def enough(result: Result) -> list[str]:
    """Why the soak proves nothing, or proves a defect; empty where it proves what it should."""
    short = result.seconds < 600
    missed = list(dict.fromkeys(result.wrong))
    missed += [f"{one.name} is not exact" for one in (*result.tables, *result.topics) if not one.exact]
    if result.drained_after is None:
        missed.append("not everything was committed, and what was left over gone, within 180 s of the last fault")
        missed += [f"left over: {one}" for one in result.left]
    slow = {kind: max(times) for kind, times in result.recovery.items() if max(times) > DRAIN_SECONDS}
    missed += [f"the next commit after {kind} came only {seconds:.0f} s later" for kind, seconds in slow.items()]
    seen = (
        (sum(result.epochs.values()), 5 if short else 100, "epochs with records were committed"),
        (sum(hit.live for hit in result.hits), 5 if short else 30, "faults struck during an epoch"),
        (result.snapshots, 20 if short else 100, "snapshots were taken"),
    )
    return missed + [f"only {number} {what}" for number, least, what in seen if number < least]


def table(header: str, rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table in Markdown."""
    ruler = "|" + "---|" * (header.count("|") + 1)
    return [f"| {header} |", ruler, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def tables(result: Result) -> str:
    planned = Counter(fault.kind for fault in result.planned)
    hits = Counter(hit.kind for hit in result.hits)
    live = Counter(hit.kind for hit in result.hits if hit.live)
    phases = Counter(hit.phase for hit in result.hits if hit.live)
    faults = []
    for kind in sorted(planned):
        times = sorted(result.recovery.get(kind, []))
        median, longest = (f"{times[at]:.1f} s" if times else "-" for at in (len(times) // 2, -1))
        faults.append((kind, planned[kind], planned[kind] - hits[kind], hits[kind], live[kind], median, longest))
    compared = "records in the log | duplicates | missing | never produced"
    of_pipelines = [(name, count, result.records[name]) for name, count in result.epochs.items()]
    return "\n".join(
        [
            *table(
                "fault | planned | met nothing | struck | during an epoch | next commit after, median | longest",
                faults,
            ),
            *table("phase | faults that hit it", sorted(phases.items())),
            *table("pipeline | epochs with records | records", of_pipelines),
            *table(f"table | {compared}", [astuple(one)[:5] for one in result.tables]),
            *table(
                f"topic | {compared} | keys out of order | seen by read_uncommitted alone", map(astuple, result.topics)
            ),
        ]
    )


def summary(result: Result) -> str:
    live = sum(hit.live for hit in result.hits)
    drained = "never" if result.drained_after is None else f"{result.drained_after:.1f} s after the last fault"
    longest = max((max(times) for times in result.recovery.values()), default=0.0)
    records = max(result.records.values(), default=0)
    return "\n".join(
        [
            f"- {len(result.hits)} faults struck, {live} of them during an epoch.",
            f"- {sum(result.epochs.values())} epochs were committed. {result.aborted} aborts and {result.fenced} fenced"
            f" attempts of {result.attempts} did them no harm.",
            f"- The next commit came at most {longest:.1f} s after the last fault before it.",
            f"- {result.snapshots} snapshots were read meanwhile, {len(result.wrong)} of them wrong.",
            f"- {sum(one.exact for one in result.tables)} of {len(result.tables)} tables and"
            f" {sum(one.exact for one in result.topics)} of {len(result.topics)} topics hold each of {records}"
            " records once.",
            f"- All was committed and published, and nothing left over, {drained}. Nobody helped.",
        ]
    )
