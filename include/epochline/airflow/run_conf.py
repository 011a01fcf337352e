"""What a trigger may say. Airflow itself merges any key of a run's conf into its params without a word."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from epochline.errors import ConfigurationError

_SHOWN = 60


def refuse_unknown(conf: Mapping[str, Any] | None, declared: Collection[str], pipeline: str) -> None:
    """Fail the plan where a run's conf holds a key that is no param of the DAG (SEC-2).

    The declared params are the allow-list, and each has a schema that Airflow checks. Options of Spark, Kafka or
    PostgreSQL are none of them: they come from declaration and connections alone.

    Raises:
        ConfigurationError: the message names the keys, never their values.
    """
    strangers = sorted(str(key) for key in (conf or {}) if key not in declared)
    if strangers:
        raise ConfigurationError(
            f"{pipeline}: this run's conf holds {', '.join(repr(key[:_SHOWN]) for key in strangers)}, which a trigger"
            f" cannot set; it can set {', '.join(sorted(declared))}. Nothing was planned. Spark's and Kafka's options"
            " belong into the declaration and the connections."
        )
