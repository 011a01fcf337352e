"""What a drill has found so far, in a file of its folder: a drill that is stopped goes on there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from epochline.drill.shown import Content, Difference
from epochline.local.home import write_private

Outcome = Literal["equal", "different", "not recovered", "not reached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one step."""

    title: str
    killed: str
    """What ended, in words."""
    seconds: float
    """The run that recovered."""
    outcome: Outcome
    said: str = ""
    """Why a run did not recover, or the pipeline was not killed."""
    different: tuple[Difference, ...] = ()


@dataclass(slots=True, kw_only=True)
class Progress:
    """The state of one drill."""

    file: Path
    bound: dict[str, Any]
    """What it is a drill of: versions of declaration, code and Epochline, and options. Another value begins again."""
    begun: str = ""
    copied: list[str] = field(default_factory=list)
    """The ranges that were copied, in words."""
    records: int = 0
    partitions: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What is not as in production."""
    undisturbed: dict[str, Content] = field(default_factory=dict)
    seconds: float = 0.0
    """The undisturbed run."""
    passed: dict[str, int] = field(default_factory=dict)
    recovered_by: dict[str, str] = field(default_factory=dict)
    """By failpoint that recoveries alone passed, the kill before."""
    results: dict[str, Result] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def keep(self) -> None:
        """Write the file. Nobody else can read it, because it contains rows."""
        fields = asdict(self)
        del fields["file"]
        write_private(self.file, json.dumps(fields, ensure_ascii=False))

    @classmethod
    def read(cls, file: Path, bound: dict[str, Any]) -> Progress | None:
        """What the file has of a drill of the same things, if it got as far as the undisturbed run."""
        try:
            fields = json.loads(file.read_text())
            if fields["bound"] != bound or not fields["undisturbed"]:
                return None
            for name, result in fields["results"].items():
                different = tuple(
                    Difference(**{**one, "samples": tuple(one["samples"])}) for one in result["different"]
                )
                fields["results"][name] = Result(**{**result, "different": different})
            return cls(file=file, **fields)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @property
    def worst(self) -> Outcome | Literal["unfinished"]:
        """The verdict."""
        found = {result.outcome for result in self.results.values()}
        if "different" in found:
            return "different"
        if "not recovered" in found:
            return "not recovered"
        return "unfinished" if self.left else "equal"
