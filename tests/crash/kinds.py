"""The pipelines that cases of crashes are made with: declarations by which the use cases take another way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import timed
from epochline import EventTime, Files, KafkaTopic, PostgresTable, StateTable, Text, Tumbling, Windowed
from epochline.declare.restart import FailureRate
from epochline.declare.settings import Settings
from epochline.declare.startup import FromGroup, FromTimestamp
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


def _table(name: str) -> PostgresTable:
    return PostgresTable(table=name, columns={"value": "text"})


def _files(name: str, folder: Path) -> Files:
    return Files(path=str(folder / name), columns={"value": "text"})


KINDS: dict[str, Declare] = {
    "plain": _is(),
    "from a moment": _is(startup=FromTimestamp(timestamp=ALL_TIME.start)),
    "from the end": _is(startup="latest"),
    "from a group": _is(startup=FromGroup(group="nobody", reset="earliest")),
    "paced": _is(settings=Settings(minimum_pause=timedelta(milliseconds=50), target_duration=timedelta(minutes=1))),
    "impatient": _is(settings=Settings(tolerable_failures=0)),
    "with state": _with_state,
    "with windows": _with_windows,
    "counting failures": _is(settings=Settings(restart=FailureRate(max_failures=1000, interval=timedelta(hours=1)))),
    "with files": _with_files,
    "with sinks": _with_sinks,
    "at least once": _at_least_once,
}
"""By name; every one but ``from the end`` reads all records."""
