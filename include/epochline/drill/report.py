"""A drill's report: Markdown for people, a mapping for programs."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from epochline.drill.progress import Progress
from epochline.failpoints import known_failpoints
from epochline.protocol.quantities import counted, number

_VERDICTS: Mapping[str, str] = {
    "equal": "After every kill the next run recovered, and everything was equal to the undisturbed run.",
    "different": "Something was not equal to the undisturbed run.",
    "not recovered": "After a kill, the next run did not recover.",
    "unfinished": "Everything so far was equal to the undisturbed run. Steps are left: the next call goes on.",
}

_NOTHING_YET = "No step was run yet, so nothing is shown. The next call begins with the steps."

_NOT_SHOWN = """
- One machine, and servers of the drill's own: no failover, no network that breaks, no disk that fills up.
- Processes were killed, and no server was. Epochline's page on reliability lists what its own tests break.
- Targets and states began empty. The amount of data was small.
- Functions of your own may reach other systems by themselves: a drill does not see that.
"""


def as_dict(pipeline: str, progress: Progress) -> dict[str, Any]:
    """The report for programs."""
    return {
        "pipeline": pipeline,
        "verdict": progress.worst,
        "begun": progress.begun,
        **progress.bound,
        "copied": progress.copied,
        "records": progress.records,
        "notes": progress.notes,
        "undisturbed_seconds": round(progress.seconds, 1),
        "steps": [{"step": name, **asdict(result)} for name, result in progress.results.items()],
        "left": progress.left,
        "never_passed": never_passed(progress),
    }


def never_passed(progress: Progress) -> list[str]:
    """The failpoints that this pipeline passed neither in a run nor in a recovery."""
    return sorted(known_failpoints() - progress.passed.keys() - progress.recovered_by.keys())


def as_markdown(pipeline: str, progress: Progress) -> str:
    """The report for people."""
    bound, results = progress.bound, progress.results
    reached = [result for result in results.values() if result.outcome != "not reached"]
    begun = reached or progress.worst != "unfinished"
    lines = [
        f"# Drill of {pipeline}",
        "",
        f"**{_VERDICTS[progress.worst] if begun else _NOTHING_YET}**",
        "",
        f"- Begun: {progress.begun}. Epochline {bound['epochline']}, Python {platform.python_version()},"
        f" Spark on `{bound['master']}`.",
        f"- Declaration {bound['declaration']}, code {str(bound['code'])[:16]}.",
        f"- {counted(progress.records, 'record')} copied: {'; '.join(progress.copied)}.",
        f"- One undisturbed run took {progress.seconds:.0f} s. {counted(len(reached), 'step')} so far,"
        f" {counted(len(progress.left), 'step')} left.",
        f"- Compared: {', '.join(progress.undisturbed)}.",
        "",
        "| Step | Failpoint | Killed | Recovery, seconds | Result |",
        "|---|---|---|---:|---|",
    ]
    for name, result in results.items():
        seconds = f"{result.seconds:.1f}" if result.outcome in ("equal", "different") else ""
        lines.append(f"| {result.title} | {name} | {result.killed} | {seconds} | {result.outcome} |")
    wrong = {name: result for name, result in results.items() if result.different or result.said}
    if wrong:
        lines += ["", "## What was not equal", ""]
        for name, result in wrong.items():
            lines.append(f"- **{name}** {_cell(result.said)}".rstrip())
            lines += [f"  - {_cell(str(one))}" for one in result.different]
    if progress.left:
        lines += ["", "## What is left", "", ", ".join(progress.left)]
    if progress.notes:
        lines += ["", "## What was not as in production", "", *(f"- {_cell(note)}" for note in progress.notes)]
    lines += ["", "## What this does not show", _NOT_SHOWN.rstrip()]
    unseen = never_passed(progress)
    lines += [
        "", f"This pipeline passed {number(len(progress.passed))} failpoints, its recoveries"
        f" {number(len(progress.recovered_by))} more. It never passed {number(len(unseen))}, which count for nothing:",
        "", ", ".join(unseen),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A text of the user's data as one line, which Markdown leaves alone."""
    plain = " ".join(text.split())
    return "".join(f"\\{mark}" if mark in "\\`*_[]<>|" else mark for mark in plain)
