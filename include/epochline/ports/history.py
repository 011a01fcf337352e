"""Settings of epochs, pauses between them, and failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from epochline.protocol.epoch import Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborts:
    """How often epochs of a pipeline were aborted."""

    in_a_row: int
    """Since the last commit, or since the pipeline was last paused for it."""
    ever: int


class History(Protocol):
    """What epochs ran with, when the last one was committed, and how often the pipeline failed since."""

    def keep_settings(self, epoch: Epoch, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Note with the epoch which settings are in force and what decided each (C10)."""

    def settings(self, epoch: Epoch) -> Mapping[str, Mapping[str, Any]]:
        """The settings that the epoch was planned with; empty where nobody noted any."""

    def pause_left(self, pipeline: str, pause: timedelta) -> timedelta:
        """How long until the last commit is ``pause`` ago, by the database's clock; nothing where it is (K9)."""

    def failed_attempts(self, pipeline: str, interval: timedelta) -> int:
        """Attempts that ended within the interval, up to now, without being sealed (R2)."""

    def aborts(self, pipeline: str) -> Aborts:
        """How often epochs of the pipeline were aborted; a re-opened one that is aborted again counts twice (K11)."""
