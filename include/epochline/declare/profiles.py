"""The documents' configurations K1 to K7, by name: one file holds them all, with the documents' defaults. Pure."""

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
"""Kafka's default of ``transaction.max.timeout.ms``: what a broker lets a producer ask for (K18)."""


class Kept(DeclarationModel):
    """Values of a configuration that are loaded and checked, and that nothing here acts on.

    Args:
        producer_semantics: of the documents' producer; its own default, ``at_least_once``, is refused (K16).
        transaction_timeout: of the producer's transactions, at most what a broker grants (K17 to K19). No transaction
            of Kafka's is open between a seal and a commit here, so that none can run out (X3).
        prefer_checkpoint_for_recovery: whether a newer savepoint is passed over (K6).
        time_characteristic: what a window's time is.
        group_id: of the documents' consumer; the ledger's heads decide, whatever a group says (S11).
        state_path: where the documents keep state, which lives in PostgreSQL here.
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
            raise ValueError("at_least_once repeats what was sent before a crash; say exactly_once")
        return semantics

    @field_validator("transaction_timeout")
    @classmethod
    def _what_a_broker_grants(cls, timeout: timedelta | None) -> timedelta | None:
        if timeout is not None and timeout > BROKERS_MAXIMUM:
            asked, granted = (int(one / timedelta(milliseconds=1)) for one in (timeout, BROKERS_MAXIMUM))
            raise ValueError(
                f"{asked} ms is more than the {granted} ms that a broker grants (transaction.max.timeout.ms); ask for"
                " less"
            )
        return timeout


class Profile(DeclarationModel):
    """One configuration of the documents.

    Args:
        name: its name.
        settings: every setting that the documents give or have a default for.
        kept: what the documents give beside the settings of epochs.
    """

    name: str
    settings: Settings
    kept: Kept = Field(default_factory=Kept)


def profile(name: str) -> Profile:
    """The profile of this name, with the documents' defaults for what it leaves out.

    Raises:
        ValueError: there is none; the message names those that are.
    """
    found = profiles().get(name)
    if found is None:
        raise ValueError(f"there is no profile {name!r}; there are {', '.join(profiles())}")
    return found


@cache
def profiles() -> Mapping[str, Profile]:
    """All of them, in the order of the file."""
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
