"""Where a drill kills: one failpoint per step of an epoch and per sink, or every one that the pipeline passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochline.declare.pipeline import Pipeline

CONTROL = "undisturbed again"
"""The step that kills nothing: where two undisturbed runs differ, something else than the records makes rows."""

CHOSEN: Mapping[str, Sequence[str]] = {
    "plan": ("intent.commit", "intent.committed"),
    "begin": ("begin.committed",),
    "stage": (
        "job.attempt", "state.read", "windows.closing", "write.copy", "write.commit", "write.committed",
        "write.committed@2", "manifest.commit", "end.committed",
    ),
    "stage files": ("files.write", "files.seal"),
    "seal": ("seal.epochs.mark_pre_committed", "seal.committed.2"),
    "commit": ("commit.transaction", "commit.targets.apply", "commit.commit", "commit.committed"),
    "mirror": ("mirror.source.mirror",),
    "publish": ("publish.receipts.shown",),
    "publish topic": ("topic.fence", "topic.begin", "topic.sent", "topic.commit", "topic.committed"),
    "publish files": ("files.rename", "files.manifest", "files.shown"),
}  # fmt: skip
RECOVERY = (
    "abort.epochs.mark_aborted", "discard.attempts.drop_staging", "recover.committed.2",
    "publish.sink.recover_and_commit",
)  # fmt: skip
"""Passed by a run that recovers: it is killed too, and a third run comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a drill: a run is killed at each of the failpoints, one run after the other."""

    title: str
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in reports."""
        return " then ".join(self.faults) or CONTROL


def steps_of(pipeline: Pipeline, passed: Mapping[str, int], *, every: bool) -> list[Step]:
    """The steps for an undisturbed run that passed each of these failpoints so often, in the order of passing."""
    steps = [Step(title="control")]
    if every:
        return steps + [Step(title=_title(name), faults=(name,)) for name in passed]
    for title, names in CHOSEN.items():
        for name in names:
            point, _, number = name.partition("@")
            if passed.get(point, 0) < int(number or 1):
                continue
            steps.append(Step(title=title, faults=(name,)))
            sinks = {"publish topic": pipeline.topics, "publish files": pipeline.external}.get(title, ())
            steps += [Step(title=title, faults=(f"{name}@{at}",)) for at in range(2, len(sinks) + 1)]
    return steps


def steps_of_recovery(passed_by: Mapping[str, str], *, every: bool) -> list[Step]:
    """The steps that kill a recovery; ``passed_by`` has, by failpoint, the kill after which a recovery passed it."""
    names = passed_by if every else [name for name in RECOVERY if name in passed_by]
    return [Step(title="recovery", faults=(passed_by[name], name)) for name in names]


def next_of(todo: Sequence[Step], done: Sequence[str]) -> Step:
    """The next of the steps, after those with the titles in ``done``: the time may not suffice for all.

    A first kill of each kind of step comes before the second one of any.
    """
    killed = Counter(done)
    return min(todo, key=lambda step: killed[step.title])


def _title(name: str) -> str:
    for title, names in CHOSEN.items():
        if name in names:
            return title
    return name.partition(".")[0]
