"""The versions that Epochline works with: one table for `epochline doctor`, the documents and `make matrix`."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """The oldest version that works, and the newest that was run, each with its later patches."""

    oldest: str
    newest: str

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"

    def is_older(self, version: str) -> bool:
        """Whether a version is older than the range."""
        return _numbers(version) < _numbers(self.oldest)

    def is_newer(self, version: str) -> bool:
        """Whether a version is newer than the range."""
        newest = _numbers(self.newest)
        return _numbers(version)[: len(newest)] > newest


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


RANGES: Mapping[str, Range] = {
    "Python": Range("3.11", "3.13"),
    "PostgreSQL": Range("16", "18"),
    "Kafka": Range("2.8", "4.2"),
    "Spark": Range("4.0", "4.2"),
    "Airflow": Range("3.2.2", "3.3"),
}
