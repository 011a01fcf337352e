"""The settings in force for an epoch: defaults < file < profile < declaration < conf of the run (C10, R5). Pure.

The epoch's row records each with its value and the place that decided it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from pydantic import TypeAdapter

from epochline.declare.pipeline import Pipeline
from epochline.declare.profiles import profile
from epochline.declare.restart import Endless, NoRestart, RestartStrategy
from epochline.declare.settings import OnCancel, PerRun, Settings
from epochline.errors import ConfigurationError, DeclarationError

_STRATEGY: TypeAdapter[RestartStrategy] = TypeAdapter(RestartStrategy)

_DEFAULT_TIMEOUT = timedelta(hours=1)

_NOT_PER_RUN = {
    "interval": "the schedule belongs to the DAG",
    "schedule": "it belongs to the DAG",
    "restart": "Airflow takes it from the DAG when the run is made",
    "tolerable_failures": "it is the pipeline's, whose epochs in a row are counted",
    "fail_on_epoch_error": "it is the pipeline's, whose epochs in a row are counted",
    "max_concurrent": "one epoch is in flight at a time",
    "semantics": "it is always exactly_once",
    "profile": "it belongs to the declaration",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSettings:
    """What holds for an epoch, every setting decided (`Settings` says what each means)."""

    interval: timedelta | str | None
    """The schedule; None: checkpointing is off, epochs are run by hand alone (K22)."""
    minimum_pause: timedelta
    timeout: timedelta
    tolerable_failures: int | None
    """None: any number."""
    on_cancel: OnCancel
    max_concurrent: int
    semantics: Literal["exactly_once"]
    restart: RestartStrategy
    parallelism: int | None
    decided_by: Mapping[str, str]
    """Per setting ``default``, ``file``, ``profile NAME``, ``declaration`` or ``run conf``."""
    notes: tuple[str, ...] = ()
    """What was asked for and is not so, or means less than it seems to."""

    def recorded(self) -> dict[str, dict[str, Any]]:
        """As the epoch's row keeps it: durations in seconds."""
        return {name: {"value": _plain(getattr(self, name)), "from": place} for name, place in self.decided_by.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, RestartStrategy.__origin__):  # type: ignore[attr-defined]
        return {name: _plain(one) for name, one in value}
    return value


def resolve_settings(
    pipeline: Pipeline, *, file: Settings | None = None, run: PerRun | None = None
) -> ResolvedSettings:
    """The settings that hold for an epoch of the pipeline.

    Args:
        pipeline: the declaration, which may name a profile.
        file: the settings file; none where it is not given.
        run: what the conf of the run changes.
    """
    declared = pipeline.settings
    places: list[tuple[str, Settings | PerRun]] = [("declaration", declared), ("file", file or Settings())]
    if run is not None:
        places.insert(0, ("run conf", run))
    if pipeline.profile is not None:
        places.insert(-1, (f"profile {pipeline.profile}", profile(pipeline.profile).settings))
    decided_by: dict[str, str] = {}

    def decide(name: str, default: Any, attribute: str | None = None) -> Any:
        for place, settings in places:
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
    if interval is None:
        notes.append(
            "no interval: checkpointing is off, so nothing is planned, tried again or finished until somebody runs the"
            " pipeline; what a run commits is exactly once all the same (K22)"
        )
    asked = decide("max_concurrent", 1)
    if asked > 1:
        notes.append(f"max_concurrent={asked} was asked for; one epoch of a pipeline is in flight at a time (K14)")
    tolerance = decide("tolerable_failures", "any", "tolerance")
    return ResolvedSettings(
        interval=interval,
        minimum_pause=decide("minimum_pause", timedelta(0)),
        timeout=decide("timeout", _DEFAULT_TIMEOUT),
        tolerable_failures=None if tolerance == "any" else tolerance,
        on_cancel=decide("on_cancel", "retain"),
        max_concurrent=1,
        semantics=decide("semantics", "exactly_once"),
        restart=decide("restart", NoRestart() if interval is None else Endless()),
        parallelism=decide("parallelism", None),
        decided_by=decided_by,
        notes=tuple(notes),
    )


def recorded_restart(settings: Mapping[str, Any]) -> RestartStrategy:
    """The restart strategy out of an epoch's recorded settings; without one, that of a run by hand."""
    recorded = settings.get("restart")
    return NoRestart() if recorded is None else _STRATEGY.validate_python(recorded["value"])


def recorded_value(settings: Mapping[str, Any], name: str) -> Any:
    """One value out of an epoch's recorded settings; None where it has none."""
    return settings.get(name, {}).get("value")


def run_settings(conf: Mapping[str, Any], params: Iterable[str]) -> PerRun:
    """The settings in the conf of a run; a value of None is none.

    Args:
        conf: the run's conf, as it was triggered.
        params: names of the DAG's params: what a conf may hold.

    Raises:
        ConfigurationError: the conf holds what no run may set (SEC-2), or a wrong value.
    """
    for name in conf:
        if name in _NOT_PER_RUN:
            raise ConfigurationError(
                f"{name} cannot be set for one run: {_NOT_PER_RUN[name]}. Nothing was planned. Take it out of the conf;"
                " the declaration or the settings file may say it."
            )
    allowed = set(params)
    strangers = sorted(set(conf) - allowed)
    if strangers:
        raise ConfigurationError(
            f"the conf of the run holds {', '.join(strangers)}, which no run may set. Nothing was planned. A conf may"
            f" hold {', '.join(sorted(allowed))}."
        )
    given = {name: conf[name] for name in PerRun.model_fields if conf.get(name) is not None}
    try:
        return PerRun(**given)
    except DeclarationError as error:
        raise ConfigurationError(f"the conf of the run: {error} Nothing was planned.") from error
