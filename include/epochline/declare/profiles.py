"""Profiles: the configurations K1 to K7 of docs/requirements.md by name, read from ``profiles.toml``. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from epochline.declare.base import DeclarationModel
from epochline.declare.restart import Duration
from epochline.declare.settings import Settings

_FILE = Path(__file__).with_name("profiles.toml")

_DEFAULTS = Settings(
    minimum_pause=timedelta(0),
    timeout=timedelta(minutes=10),
    on_cancel="delete",
    max_concurrent=1,
    semantics="exactly_once",
)


BROKERS_MAXIMUM = timedelta(minutes=15)
"""Kafka's default of ``transaction.max.timeout.ms``, the longest time-out that a producer may request (K18)."""


class Kept(DeclarationModel):
    """Values of a profile that are loaded and checked but have no effect.

    Args:
        producer_semantics: semantics of the producer; ``at_least_once`` is refused (K16).
        transaction_timeout: time-out of the producer's transactions, at most what a broker grants (K17 to K19). It has
            no effect, because no Kafka transaction is open between a seal and a commit (X3).
        prefer_checkpoint_for_recovery: whether recovery ignores a newer savepoint (K6).
        time_characteristic: the time that windows use.
        group_id: the consumer group; an epoch starts at the ledger's heads instead (S11).
        state_path: the folder of state; state lives in PostgreSQL instead.
    """

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
            wanted, granted = (int(one / timedelta(milliseconds=1)) for one in (timeout, BROKERS_MAXIMUM))
            raise ValueError(
                f"{wanted} ms is more than the {granted} ms that a broker grants (transaction.max.timeout.ms); set a"
                " shorter time-out"
            )
        return timeout


class Profile(DeclarationModel):
    """One profile.

    Args:
        name: its name.
        settings: the settings of its epochs, with the defaults of all profiles filled in.
        kept: its other values, which have no effect.
    """

    name: str
    settings: Settings
    kept: Kept = Field(default_factory=Kept)


def profile(name: str) -> Profile:
    """Find a profile by name.

    Raises:
        ValueError: there is no such profile; the message lists the known names.
    """
    found = profiles().get(name)
    if found is None:
        raise ValueError(f"there is no profile {name!r}; known profiles: {', '.join(profiles())}")
    return found


@cache
def profiles() -> Mapping[str, Profile]:
    """All profiles, in the order of ``profiles.toml``."""
    return {name: _read(name, table) for name, table in tomllib.loads(_FILE.read_text()).items()}


def _read(name: str, table: dict[str, Any]) -> Profile:
    kept = Kept(**table.pop("kept", {}))
    given = Settings(**table)
    settings = given.model_copy(
        update={
            field: value
            for field, value in _DEFAULTS.model_dump(exclude_none=True).items()
            if getattr(given, field) is None
        }
    )
    if settings.tolerance is None:
        settings = settings.model_copy(update={"tolerable_failures": 0})
    return Profile(name=name, settings=settings, kept=kept)
