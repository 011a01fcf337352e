"""What a run of the nemesis says at its end, as text and as a page of the documentation. Written from the result alone."""

import os
import platform
from collections import Counter
from datetime import UTC, datetime

from tests.nemesis.run import Result
from tests.soak.report import DRAIN_SECONDS, table


def enough(result: Result) -> list[str]:
    """Why the run proves nothing, or proves a defect; empty where it proves what it should."""
    missed = list(dict.fromkeys(result.wrong))
    missed += [f"{one.name} is not exact" for one in result.sinks if not one.exact]
    if result.unacknowledged:
        missed.append(f"the producer gave up {result.unacknowledged} records")
    if result.drained_after is None:
        missed.append(f"not everything was committed and shown before the machine was idle for {DRAIN_SECONDS:.0f} s")
        missed += [f"left over: {one}" for one in result.left]
    # A run of minutes on a machine that does other things shows that all goes on, and no number.
    whole = result.seconds >= 3600
    seen = (
        (result.epochs, 100 if whole else 2, "epochs with records were committed"),
        (sum(one.phase is not None for one in result.strikes), 60 if whole else 2, "faults struck during an epoch"),
        (result.snapshots, 100 if whole else 10, "snapshots were taken"),
    )
    return missed + [f"only {number} {what}" for number, few, what in seen if number < few]


def tables(result: Result) -> str:
    """Each kind of fault and each sink."""
    planned = Counter(fault.kind for fault in result.planned)
    struck = Counter(one.kind for one in result.strikes)
    phases = {kind: Counter(one.phase for one in result.strikes if one.kind == kind) for kind in planned}
    faults = []
    for kind in sorted(planned):
        times = sorted(result.recovery.get(kind, []))
        median, longest = (f"{times[at]:.1f} s" if times else "-" for at in (len(times) // 2, -1))
        met = [phases[kind][phase] for phase in ("plan", "stage", "commit", None)]
        faults.append((kind, planned[kind], struck[kind], *met, median, longest))
    sinks = [(one.name, one.rows, one.lost, one.doubled, one.strange) for one in result.sinks]
    header = "fault | planned | struck | plan | stage | commit | no epoch | next commit after, median | longest"
    return "\n".join([*table(header, faults), *table("sink | rows | lost | doubled | strange", sinks)])


def summary(result: Result) -> str:
    """What came of it, for people."""
    live = sum(one.phase is not None for one in result.strikes)
    drained = "never" if result.drained_after is None else f"{result.drained_after:.0f} s after the last fault"
    longest = max((max(times) for times in result.recovery.values()), default=0.0)
    return "\n".join(
        [
            f"- {result.records:,} records were produced; {result.records - result.unacknowledged:,} were acknowledged.",
            f"- {len(result.strikes)} faults struck, {live} of them during an epoch.",
            f"- {result.epochs} epochs were committed by {result.attempts} attempts, of which {result.fenced} were fenced"
            " or failed.",
            f"- The next commit came at most {longest:.0f} s after the last fault before it.",
            f"- The reader took {result.snapshots} snapshots meanwhile; {len(result.wrong)} were wrong.",
            f"- {sum(one.exact for one in result.sinks)} of {len(result.sinks)} sinks are exact.",
            f"- Everything was committed and shown, and nothing was left over, {drained}. No person helped.",
        ]
    )


def page(result: Result, commit: str) -> str:
    """The page docs/soak.md."""
    return f"""\
# A soak

This page has the result of a run in which servers were broken at random. `make soak` writes it; do not edit it.

The servers are three Kafka nodes, PostgreSQL with a synchronous standby, and Airflow with its Spark server.
Airflow's and Spark's processes are started again when they end, as systemd or Compose would do it.
One pipeline runs by its schedule: Kafka's VerifiableProducer writes numbers, a transform gives each a key, and the
epochs write a table, each key's greatest number, a topic, files, and sums by key as state.
A reader compares table, state and ledger in one snapshot at a time. Kafka's console consumer reads the topic.
At the end a checker looks in every sink for each number that Kafka acknowledged to the producer.

## What came of it

Run on {datetime.now(UTC):%Y-%m-%d}, commit `{commit}`, {os.cpu_count()} cores, {platform.system()}, \
Python {platform.python_version()}:
`python -m tests.nemesis --minutes {result.seconds / 60:g} --seed {result.seed}`.

{summary(result)}

[The data](data/soak.txt) list each kind of fault and each sink.
"""
