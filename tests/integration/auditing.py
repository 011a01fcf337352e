"""An audit in this process: what it finds, and a source that holds nothing any more."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from epochline.audit import Difference, audit


class Heard:
    """Keeps the differences that an audit tells."""

    def __init__(self, found: list[str]) -> None:
        self._found = found

    def difference(self, one: Difference) -> None:
        self._found.append(str(one))

    def begin(self, epochs: int, offsets: int) -> None:
        pass

    def advance(self, offsets: int) -> None:
        pass

    def epoch(self, result: object) -> None:
        pass


class NothingLeft:
    """A source that holds no record any more."""

    def session(self) -> Any:
        return nullcontext()

    def held(self, _: Sequence[str]) -> dict[Any, Any]:
        return {}


def audited(dsn: str, pipeline: str, source: Any) -> list[str]:
    """What an audit finds."""
    found: list[str] = []
    audit(dsn, source, pipeline, Heard(found))
    return found
