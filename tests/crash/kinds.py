"""The pipelines that cases of crashes are made with: declarations by which the use cases take another way."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import timed
from epochline import Bounds, EventTime, Files, KafkaTopic, Measure, PostgresTable, StateTable, Text, Tumbling, Windowed
from epochline.declare.settings import FailureRate, NoRestart, Settings
from epochline.declare.source import FromGroup, FromTimestamp
from epochline.protocol.epoch import Interval

ALL_TIME = Interval(start=datetime(2000, 1, 1, tzinfo=UTC), until=datetime(2100, 1, 1, tzinfo=UTC))
WINDOW = (datetime(2026, 3, 1, tzinfo=UTC), datetime(2027, 3, 1, tzinfo=UTC))

Declaration = dict[str, Any]
Declare = Callable[[str, Path], Declaration]
"""Gives a declaration as far as it differs from a plain one.

It takes the name of the pipeline, and the folder where it may have files, the same for every process.
"""


def _is(**fields: Any) -> Declare:
    return lambda _name, _folder: dict(fields)


def _with_state(name: str, _folder: Path) -> Declaration:
    columns = {"kind": "text", "records": "bigint"}
    state = StateTable(table=f"{name}_state", key="kind", columns=columns, keys="pipelines.word_count:words")
    return {"transform": "pipelines.word_count:count", "state": state}


def _with_epoch_files(name: str, folder: Path) -> Declaration:
    settings = Settings(epoch_files=str(folder / "epochs"), epoch_files_kept=2)
    return {**_with_state(name, folder), "settings": settings}


def _with_bounds(**limits: Any) -> Declare:
    def declare(name: str, _folder: Path) -> Declaration:
        rows = Measure(name="rows", sql="SELECT count(*) FROM staged", table=name, **limits)
        return {"bounds": Bounds(most_quarantined=1, measures=(rows,))}

    return declare


def _with_windows(name: str, _folder: Path) -> Declaration:
    counted = PostgresTable(
        table=f"{name}_counted", mode="upsert", key=("value", "window_start"), aggregated=True,
        columns={"value": "text", "window_start": "timestamptz", "window_end": "timestamptz", "records": "bigint"},
    )  # fmt: skip
    return {
        "parse": "timed:parse",
        "record": timed.RECORD,
        "windows": Windowed(
            time=EventTime(column="at", idle_after=timedelta(hours=1)), window=Tumbling(size=3600), key="value",
            aggregates={"records": "count(*)"}, into=counted.table, too_late=name,
        ),
        "sinks": [_table(name), counted],
    }  # fmt: skip


def _with_files(name: str, folder: Path) -> Declaration:
    return {"sinks": [_table(name), _files(name, folder)]}


def _with_sinks(name: str, folder: Path) -> Declaration:
    return {"sinks": [_table(name), KafkaTopic(topic=f"{name}-out", value=Text()), _files(name, folder)]}


def _at_least_once(name: str, _folder: Path) -> Declaration:
    return {"sinks": [_table(name), KafkaTopic(topic=f"{name}-out", value=Text(), semantics="at_least_once")]}


def _every_sink(semantics: Literal["exactly_once", "at_least_once"]) -> Declare:
    """Each kind of sink, for one epoch: append, upsert, add, a topic, files."""

    def declare(name: str, folder: Path) -> Declaration:
        columns = {"value": "text"}
        return {
            "parse": "timed:count",
            "record": timed.COUNTED,
            "sinks": [
                PostgresTable(table=name, columns=columns),
                PostgresTable(table=f"{name}_upsert", mode="upsert", key="value", columns=columns),
                PostgresTable(table=f"{name}_add", mode="add", key="value", columns=timed.COUNTED, measures="one"),
                KafkaTopic(topic=f"{name}-out", value=Text(), semantics=semantics),
                _files(name, folder),
            ],
        }

    return declare


def _table(name: str) -> PostgresTable:
    return PostgresTable(table=name, columns={"value": "text"})


def _files(name: str, folder: Path) -> Files:
    return Files(path=str(folder / name), columns={"value": "text"})


KINDS: dict[str, Declare] = {
    "plain": _is(),
    "from a moment": _is(startup=FromTimestamp(timestamp=ALL_TIME.start)),
    "from the end": _is(startup="latest"),
    "from a group": _is(startup=FromGroup(group="nobody", reset="earliest")),
    "paced": _is(
        schedule=timedelta(milliseconds=200),
        settings=Settings(minimum_pause=timedelta(milliseconds=50), target_duration=timedelta(minutes=1)),
    ),
    "impatient": _is(settings=Settings(tolerable_failures=0)),
    "tolerant": _is(settings=Settings(tolerable_failures=3)),
    "without restarts": _is(wake_on_data=timedelta(seconds=5), settings=Settings(restart=NoRestart())),
    "with state": _with_state,
    "with epoch files": _with_epoch_files,
    "inside its bounds": _with_bounds(change=1, first="inside"),
    "outside its bounds": _with_bounds(most=0),
    "with windows": _with_windows,
    "counting failures": _is(settings=Settings(restart=FailureRate(max_failures=1000, interval=timedelta(hours=1)))),
    "with files": _with_files,
    "with sinks": _with_sinks,
    "at least once": _at_least_once,
    "every sink": _every_sink("exactly_once"),
    "every sink at least once": _every_sink("at_least_once"),
}
"""By name; every one but ``from the end`` reads all records."""
