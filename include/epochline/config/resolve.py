"""Resolves the settings of an epoch: defaults < settings file < profile < declaration < conf of the run.

The epoch's row records each setting with its value and the place that decided it.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from epochline.config.places import home_folder, project_folder
from epochline.declare.base import DeclarationModel
from epochline.declare.pipeline import Pipeline
from epochline.declare.settings import (
    Endless,
    NoRestart,
    OnCancel,
    PerRun,
    RestartStrategy,
    Retention,
    Settings,
    profile,
)
from epochline.errors import ConfigurationError, DeclarationError

_STRATEGY: TypeAdapter[RestartStrategy] = TypeAdapter(RestartStrategy)

_NOT_PER_RUN = {
    "interval": "the schedule belongs to the DAG",
    "schedule": "it belongs to the DAG",
    "restart": "Airflow reads it from the DAG when it creates the run",
    "tolerable_failures": "it counts aborted epochs of several runs",
    "fail_on_epoch_error": "it counts aborted epochs of several runs",
    "max_concurrent": "one epoch is in flight at a time",
    "semantics": "it is always exactly_once",
    "target_duration": "the limit of an epoch follows from the one before; give the run a record_limit",
    "epoch_files": "the files of a pipeline's epochs lie in one folder",
    "epoch_files_kept": "it counts files of several epochs",
    "quarantining_above": "it says when a pipeline needs somebody, whatever one run does",
    "retention": "it says how long the ledger keeps what several runs left",
    "profile": "it belongs to the declaration",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSettings:
    """The settings of an epoch, all decided (`Settings` describes each)."""

    interval: timedelta | str | None
    """The schedule; None: checkpointing is off, and epochs run only by hand."""
    minimum_pause: timedelta
    timeout: timedelta
    tolerable_failures: int | None
    """None: any number."""
    on_cancel: OnCancel
    max_concurrent: int
    semantics: Literal["exactly_once"]
    restart: RestartStrategy
    parallelism: int | None
    target_duration: timedelta | None
    epoch_files: str | None
    epoch_files_kept: int
    quarantining_above: float
    retention: Retention
    decided_by: Mapping[str, str]
    """Per setting ``default``, ``file``, ``profile NAME``, ``declaration`` or ``run conf``."""
    notes: tuple[str, ...] = ()

    def recorded(self) -> dict[str, dict[str, Any]]:
        """The settings as the epoch's row records them: durations in seconds."""
        return {name: {"value": _plain(getattr(self, name)), "from": place} for name, place in self.decided_by.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, DeclarationModel):
        return {name: _plain(field) for name, field in value if field is not None}
    return value


def resolve_settings(
    pipeline: Pipeline, *, file: Settings | None = None, run: PerRun | None = None
) -> ResolvedSettings:
    """Resolve the settings of an epoch of the pipeline, from its declaration, the settings file and the run's conf."""
    places: dict[str, Settings | PerRun] = {} if run is None else {"run conf": run}
    places["declaration"] = pipeline.settings
    if pipeline.profile is not None:
        places[f"profile {pipeline.profile}"] = profile(pipeline.profile).settings
    places["file"] = file or Settings()
    decided_by: dict[str, str] = {}

    def decide(name: str, default: Any, attribute: str | None = None) -> Any:
        for place, settings in places.items():
            value = getattr(settings, attribute or name, None)
            if value is not None:
                decided_by[name] = place
                return value
        decided_by[name] = "default"
        return default

    interval = decide("interval", None)
    if "schedule" in pipeline.model_fields_set:
        interval, decided_by["interval"] = pipeline.schedule, "declaration"
    notes = []
    by_hand = interval is None and pipeline.wake_on_data is None
    if by_hand:
        notes.append(
            "no interval: checkpointing is off, so nothing is planned, tried again or finished until the next manual"
            " run; what a run commits is still exactly once"
        )
    wanted = decide("max_concurrent", 1)
    if wanted > 1:
        notes.append(f"max_concurrent={wanted} has no effect: one epoch of a pipeline is in flight at a time")
    tolerance = decide("tolerable_failures", "any", "tolerance")
    restart = decide("restart", NoRestart() if by_hand else Endless())
    if isinstance(restart, Endless) and decided_by["restart"] != "default":
        notes.append(
            "restart is declared as endless: an epoch that fails of the same error of code is tried without end, at"
            f" pauses that grow to {restart.longest_pause.total_seconds():g} s; nothing pauses the pipeline"
        )
    if pipeline.profile is not None and decided_by["restart"] == "default":
        # Flink's default is what such a program asks for: it goes on after errors that come back (ADR 0049).
        decided_by["restart"] = f"profile {pipeline.profile}"
    return ResolvedSettings(
        interval=interval,
        minimum_pause=decide("minimum_pause", timedelta(0)),
        timeout=decide("timeout", timedelta(hours=1)),
        tolerable_failures=None if tolerance == "any" else tolerance,
        on_cancel=decide("on_cancel", "retain"),
        max_concurrent=1,
        semantics=decide("semantics", "exactly_once"),
        restart=restart,
        parallelism=decide("parallelism", None),
        target_duration=decide("target_duration", None),
        epoch_files=decide("epoch_files", None),
        epoch_files_kept=decide("epoch_files_kept", 10),
        quarantining_above=decide("quarantining_above", 0.1),
        retention=decide("retention", Retention()),
        decided_by=decided_by,
        notes=tuple(notes),
    )


def recorded_restart(settings: Mapping[str, Any]) -> RestartStrategy:
    """Restart strategy of an epoch's recorded settings; without one, the strategy of a manual run."""
    recorded = settings.get("restart")
    return NoRestart() if recorded is None else _STRATEGY.validate_python(recorded["value"])


def recorded_value(settings: Mapping[str, Any], name: str) -> Any:
    """One value of an epoch's recorded settings; None if it is not recorded."""
    return settings.get(name, {}).get("value")


def run_settings(conf: Mapping[str, Any], params: Iterable[str]) -> PerRun:
    """The settings in a run's conf; raises `ConfigurationError` for keys that are not the DAG's params."""
    for name in conf:
        if name in _NOT_PER_RUN:
            raise ConfigurationError(
                f"{name} cannot be set for one run: {_NOT_PER_RUN[name]}. Nothing was planned. Remove it from the conf;"
                " set it in the declaration or in the settings file."
            )
    allowed = set(params)
    strangers = sorted(set(conf) - allowed)
    if strangers:
        raise ConfigurationError(
            f"the conf of the run holds {', '.join(strangers)}, which no run may set. Nothing was planned. A conf may"
            f" hold {', '.join(sorted(allowed))}."
        )
    values = {name: conf[name] for name in PerRun.model_fields if conf.get(name) is not None}
    try:
        return PerRun(**values)
    except DeclarationError as error:
        raise ConfigurationError(f"the conf of the run: {error}. Nothing was planned.") from error


def settings_file() -> Path:
    """``EPOCHLINE_SETTINGS``, or ``include/epochline.toml`` of the project."""
    named = os.environ.get("EPOCHLINE_SETTINGS")
    return Path(named) if named else project_folder() / "include" / "epochline.toml"


def file_settings() -> Settings:
    """The ``[settings]`` of the settings file, if there is one; raises `ConfigurationError` if it is unfit."""
    path = settings_file()
    try:
        text = path.read_text()
    except FileNotFoundError:
        if "EPOCHLINE_SETTINGS" not in os.environ:
            return Settings()
        raise ConfigurationError(f"EPOCHLINE_SETTINGS names {path}, which does not exist.") from None
    try:
        tables = tomllib.loads(text)
        strangers = sorted(set(tables) - {"settings"})
        if strangers:
            raise ConfigurationError(f"{path}: unknown: {', '.join(strangers)}; only [settings] is supported.")
        return Settings(**tables.get("settings", {}))
    except (tomllib.TOMLDecodeError, DeclarationError, TypeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def epoch_folder(declared: str, pipeline: str) -> Path:
    """The absolute folder of a pipeline's epoch files; a relative setting is below the stack's home."""
    return (home_folder() / Path(declared).expanduser() / pipeline).absolute()
