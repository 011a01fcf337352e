"""Settings of epochs, pauses between them, and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from epochline.protocol.epoch import Epoch, Run
from epochline.protocol.failures import RecordedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborts:
    """How often epochs of a pipeline were aborted."""

    in_a_row: int
    """Since the last commit, or since aborts last paused the pipeline."""
    ever: int


class History(Protocol):
    """Settings of epochs, the time of the last commit, and failures since."""

    def keep_settings(self, epoch: Epoch, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep with the epoch its settings and where each comes from (C10)."""

    def settings(self, epoch: Epoch) -> Mapping[str, Mapping[str, Any]]:
        """The settings that the epoch was planned with; empty if none were kept."""

    def pause_left(self, pipeline: str, pause: timedelta) -> timedelta:
        """Time until the last commit is ``pause`` ago, by the database's clock; zero if it is (K9)."""

    def interval_left(self, pipeline: str, interval: timedelta) -> timedelta:
        """Time until the last epoch, operators' epochs left out, was planned ``interval`` ago; zero if it was (K8)."""

    def failed_attempts(self, pipeline: str, interval: timedelta) -> int:
        """Number of attempts that ended unsealed within the interval before now (R2)."""

    def errors(self, epoch: Epoch) -> Sequence[tuple[str | None, str | None]]:
        """Class and text of the error of each attempt since the epoch was last planned, the newest first."""

    def plan_failed(self, pipeline: str, run: Run, error: RecordedError) -> None:
        """Keep why a run has no epoch. A repeat by the same run counts once."""

    def plan_succeeded(self, pipeline: str) -> None:
        """Keep the time, and forget what `plan_failed` kept."""

    def aborts(self, pipeline: str) -> Aborts:
        """How often epochs of the pipeline were aborted. A reopened epoch that is aborted again counts twice (K11)."""
