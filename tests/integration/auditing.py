"""An audit in this process: what it finds, and a source that holds nothing any more."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from epochline.audit import Difference, EpochResult, audit


class Findings:
    """Keeps what an audit says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def difference(self, found: Difference) -> None:
        self.said.append(str(found))

    def begin(self, epochs: int, offsets: int) -> None:
        pass

    def advance(self, offsets: int) -> None:
        pass

    def epoch(self, result: EpochResult) -> None:
        pass


class NothingLeft:
    """A source that holds no record any more."""

    def session(self) -> Any:
        return nullcontext()

    def held(self, _: Sequence[str]) -> dict[Any, Any]:
        return {}


def audited(dsn: str, pipeline: str, source: Any, **epochs: int) -> list[str]:
    """What an audit finds."""
    audit(dsn, source, pipeline, found := Findings(), **epochs)
    return found.said
