"""Collects what an audit says."""

from epochline.audit import Difference, EpochResult


class Findings:
    """Collects what an audit says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, epochs: int, offsets: int) -> None:
        pass

    def advance(self, offsets: int) -> None:
        pass

    def difference(self, found: Difference) -> None:
        self.said.append(str(found))

    def epoch(self, result: EpochResult) -> None:
        pass
