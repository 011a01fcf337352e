"""Settings of a pipeline's epochs and restarts, as a declaration, the settings file or a profile writes them. Pure.

Each is optional: the next weaker place decides an unset one (`epochline.config.resolve`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from epochline.declare.base import DeclarationModel, Duration, Pause

OnCancel = Literal["delete", "retain"]

MAX_CONCURRENT = 2
"""Highest accepted value of ``max_concurrent``; one epoch is in flight at a time in any case."""

BROKERS_MAXIMUM = timedelta(minutes=15)
"""Kafka's default of ``transaction.max.timeout.ms``, the longest time-out that a producer may request."""

WITHOUT_END = 1_000_000
"""Airflow's retries for a strategy without a limit: more than a hundred days at ten seconds each."""

DELAY = timedelta(seconds=10)


class FixedDelay(DeclarationModel):
    """Try again ``attempts`` times, ``delay`` apart; then the run fails and its epoch is aborted.

    Args:
        attempts: how often a failed task is tried again.
        delay: least time between two attempts.
    """

    kind: Literal["fixed_delay"] = "fixed_delay"
    attempts: int = Field(ge=0)
    delay: Pause = DELAY

    @property
    def retries(self) -> int:
        """How often Airflow tries again."""
        return self.attempts


class FailureRate(DeclarationModel):
    """Try again while the ledger counts at most ``max_failures`` failed attempts within ``interval``.

    The attempts of all the pipeline's epochs count, by the database's clock.

    Args:
        max_failures: most failed attempts within ``interval``.
        interval: the time over which failed attempts are counted.
        delay: least time between two attempts.
    """

    kind: Literal["failure_rate"] = "failure_rate"
    max_failures: int = Field(ge=1)
    interval: Duration
    delay: Pause = DELAY

    retries: ClassVar[int] = WITHOUT_END


class Endless(DeclarationModel):
    """Try again without a limit: declared, whatever fails.

    As the default with an interval, the same error of code ends the retries after three attempts (ADR 0049). Declared,
    each further pause for such an error is twice the one before.

    Args:
        delay: least time between two attempts.
        max_delay: longest pause before an attempt; a shorter one than ``delay`` has no effect.
    """

    kind: Literal["endless"] = "endless"
    delay: Pause = DELAY
    max_delay: Pause = timedelta(minutes=5)
    retries: ClassVar[int] = WITHOUT_END

    def pause_after(self, alike: int) -> timedelta:
        """The pause after so many attempts in a row that failed of the same error of code; 0 for a passing failure."""
        doublings = min(max(alike - 1, 0), 20)  # more of them exceed every pause that is of use
        return min(self.delay * (1 << doublings), self.longest_pause)

    @property
    def longest_pause(self) -> timedelta:
        """What no pause exceeds."""
        return max(self.delay, self.max_delay)


class NoRestart(DeclarationModel):
    """Never try again: the default of a pipeline without an interval."""

    kind: Literal["none"] = "none"
    retries: ClassVar[int] = 0
    delay: ClassVar[timedelta] = timedelta(0)


RestartStrategy = Annotated[FixedDelay | FailureRate | Endless | NoRestart, Field(discriminator="kind")]


class Retention(DeclarationModel):
    """How long the ledger keeps what no epoch needs, until the janitor deletes it; None keeps it for ever.

    Args:
        quarantined: bytes, headers and reason of a quarantined record. Its position stays.
        before_images: copies of replaced rows. A restore across an older epoch is refused.
        deleted_keys: keys that an upsert table deleted. Later a record older than the tombstone brings its key back.
        ledger: details of ended epochs: parts, staging, refused rows. Epochs, ranges, receipts and actions stay.
    """

    quarantined: Duration | None = None
    before_images: Duration | None = None
    deleted_keys: Duration | None = None
    ledger: Duration | None = None


class Settings(DeclarationModel):
    """Settings of a pipeline's epochs.

    Args:
        interval: how often an epoch is planned. Only for the settings file and profiles: a declaration sets
            ``schedule``, which also takes cron expressions.
        minimum_pause: least time between the end of one epoch and the plan of the next.
        timeout: an epoch that is not staged and sealed within it is aborted; the next epoch takes its range.
        tolerable_failures: how many epochs in a row may be aborted; one more pauses the pipeline.
        fail_on_epoch_error: older form of ``tolerable_failures``: True means 0, False any number. If both are
            set, ``tolerable_failures`` wins.
        on_cancel: what happens to a sealed epoch whose run ends without committing it: ``retain`` leaves it for the
            next run, ``delete`` aborts it and its range is read again. The target is the same in both.
        max_concurrent: epochs in flight; 1 or 2 is accepted, one is in flight at a time.
        semantics: only ``exactly_once``.
        restart: the restart strategy.
        parallelism: Spark tasks that read and stage at once; by default as many as there are cores, and fewer for
            few records.
        target_duration: how long an epoch should take from its plan to its commit. The record limit adapts to it,
            below the source's ``records_per_epoch``. By default it does not adapt.
        epoch_files: folder in which each committed epoch leaves a savepoint file: on a local or mounted disk,
            absolute, or relative to the stack's home. By default epochs leave no file.
        epoch_files_kept: how many of a pipeline's newest epoch files are kept, 10 by default. Older ones are deleted.
        quarantining_above: the share of an epoch's records, 0.1 by default, above which the pipeline is *quarantining*
            and `epochline lag --fail-above` fails. An epoch with fewer than 100 records is not judged.
        retention: how long the ledger keeps quarantined bytes and history. By default for ever.
    """

    interval: Duration | None = None
    minimum_pause: Pause | None = None
    timeout: Duration | None = None
    tolerable_failures: int | None = Field(default=None, ge=0)
    fail_on_epoch_error: bool | None = None
    on_cancel: OnCancel | None = None
    max_concurrent: int | None = Field(default=None, ge=1, le=MAX_CONCURRENT)
    semantics: Literal["exactly_once"] | None = None
    restart: RestartStrategy | None = None
    parallelism: int | None = Field(default=None, ge=1)
    target_duration: Duration | None = None
    epoch_files: str | None = Field(default=None, min_length=1)
    epoch_files_kept: int | None = Field(default=None, ge=1)
    quarantining_above: float | None = Field(default=None, ge=0, le=1)
    retention: Retention | None = None

    @field_validator("epoch_files")
    @classmethod
    def _on_a_disk(cls, folder: str | None) -> str | None:
        if folder is not None and ("://" in folder or "\0" in folder):
            raise ValueError(f"{folder!r} is no folder on a disk; name an absolute path, or one below the stack's home")
        return folder

    @field_validator("semantics", mode="before")
    @classmethod
    def _only_exactly_once(cls, semantics: Any) -> Any:
        if semantics in ("at_least_once", "at_most_once"):
            raise ValueError(
                f"{semantics} is not supported: rows and offsets change in one transaction, and splitting it gains"
                f" nothing. include/epochline_examples/{semantics}.py shows what would be lost or repeated"
            )
        return semantics

    @property
    def tolerance(self) -> int | Literal["any"] | None:
        """Epochs that may be aborted in a row, from the two settings for it; None if neither is set."""
        if self.tolerable_failures is not None:
            return self.tolerable_failures
        if self.fail_on_epoch_error is None:
            return None
        return 0 if self.fail_on_epoch_error else "any"


class PerRun(DeclarationModel):
    """The settings that the conf of one run may change; every other setting in a conf is refused."""

    minimum_pause: Pause | None = None
    timeout: Duration | None = None
    on_cancel: OnCancel | None = None
    parallelism: int | None = Field(default=None, ge=1)


class Kept(DeclarationModel):
    """Values of a profile that are loaded and checked but have no effect; docs/settings.md says why."""

    producer_semantics: Literal["exactly_once"] | None = None
    transaction_timeout: Duration | None = None
    prefer_checkpoint_for_recovery: bool | None = None
    time_characteristic: Literal["event_time"] | None = None
    group_id: str | None = Field(default=None, min_length=1)
    state_path: str | None = Field(default=None, min_length=1)

    @field_validator("producer_semantics", mode="before")
    @classmethod
    def _only_exactly_once(cls, semantics: Any) -> Any:
        if semantics == "at_least_once":
            raise ValueError("at_least_once repeats records that were sent before a crash; use exactly_once")
        return semantics

    @field_validator("transaction_timeout")
    @classmethod
    def _broker_grants_it(cls, timeout: timedelta | None) -> timedelta | None:
        if timeout is not None and timeout > BROKERS_MAXIMUM:
            wanted, granted = (limit // timedelta(milliseconds=1) for limit in (timeout, BROKERS_MAXIMUM))
            raise ValueError(
                f"{wanted} ms is more than the {granted} ms that a broker grants (transaction.max.timeout.ms); set a"
                " shorter time-out"
            )
        return timeout


class Profile(DeclarationModel):
    """One profile: the settings of its epochs, with the defaults of all profiles filled in, and its other values."""

    name: str
    settings: Settings
    kept: Kept = Field(default_factory=Kept)


def profile(name: str) -> Profile:
    """Find a profile by name; raises ``ValueError`` with the known names if there is none."""
    if name not in profiles():
        raise ValueError(f"there is no profile {name!r}; known profiles: {', '.join(profiles())}")
    return profiles()[name]


_DEFAULTS = {
    "minimum_pause": 0,
    "timeout": 600,
    "on_cancel": "delete",
    "max_concurrent": 1,
    "semantics": "exactly_once",
}


@cache
def profiles() -> Mapping[str, Profile]:
    """All profiles, in the order of ``profiles.toml``."""
    tables = tomllib.loads(Path(__file__).with_name("profiles.toml").read_text())
    return {name: _read(name, table) for name, table in tables.items()}


def _read(name: str, table: dict[str, Any]) -> Profile:
    kept = Kept(**table.pop("kept", {}))
    settings = Settings(**_DEFAULTS | table)
    if settings.tolerance is None:
        settings = settings.model_copy(update={"tolerable_failures": 0})
    return Profile(name=name, settings=settings, kept=kept)
