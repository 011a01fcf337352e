"""Holds every sink against what the producer saw acknowledged: number by number, with its place in the log."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg2
import pyarrow.parquet as pq

from epochline.sinks.file_manifest import committed_files
from tests.nemesis.declared import KEYS, SHOWN
from tests.nemesis.world import World

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """What the producer said: by number the partition and offset that were acknowledged, -1 where none was."""

    partitions: Numbers
    offsets: Numbers

    @classmethod
    def of(cls, printed: Path, records: int) -> Acknowledged:
        """Read what Kafka's VerifiableProducer printed."""
        partitions, offsets = np.full(records, -1, np.int64), np.full(records, -1, np.int64)
        with printed.open(encoding="utf-8") as lines:
            for line in lines:
                if '"producer_send_success"' in line:
                    one = json.loads(line)
                    number = int(one["value"])
                    assert offsets[number] < 0, f"{number} was acknowledged twice"
                    partitions[number], offsets[number] = one["partition"], one["offset"]
        return cls(partitions=partitions, offsets=offsets)

    @property
    def numbers(self) -> Numbers:
        """The acknowledged numbers, in order."""
        return np.flatnonzero(self.offsets >= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """One sink against the acknowledged numbers."""

    name: str
    rows: int
    lost: int
    doubled: int
    strange: int
    """Values that were never acknowledged, or stand at another place."""

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.strange)


def compare(world: World, acknowledged: Acknowledged, shown: Path) -> list[Exactness]:
    """Every sink: the table of all records, the topic, the files, each key's greatest, and the sums of the state."""
    return [
        _table(world, acknowledged),
        _counted(f"topic {SHOWN}", _lines(shown), acknowledged),
        _counted("files", _of_files(world.files), acknowledged),
        _by_key(world, "greatest", "bucket, number", _greatest(acknowledged.numbers)),
        _by_key(world, "sums (state)", "bucket, records, total, newest", _sums(acknowledged.numbers)),
    ]


def _counted(name: str, parts: Iterable[Numbers], acknowledged: Acknowledged) -> Exactness:
    size = len(acknowledged.offsets)
    seen, strange, rows = np.zeros(size, np.int64), 0, 0
    for part in parts:
        known = part[(part >= 0) & (part < size)]
        rows, strange = rows + len(part), strange + len(part) - len(known)
        seen += np.bincount(known, minlength=size)
    expected = acknowledged.offsets >= 0
    return Exactness(
        name=name, rows=rows, lost=int((expected & (seen == 0)).sum()),
        doubled=int(np.maximum(seen - 1, 0).sum()), strange=strange + int((~expected & (seen > 0)).sum()),
    )  # fmt: skip


def _table(world: World, acknowledged: Acknowledged) -> Exactness:
    """The rows' places too are those that were acknowledged."""
    found = [np.loadtxt(io.BytesIO(part), np.int64, delimiter=",", ndmin=2) for part in _copied(world)]
    counted = _counted("table numbers", (part[:, 0] for part in found), acknowledged)
    elsewhere = sum(
        int(
            (acknowledged.partitions[part[:, 0]] != part[:, 1]).sum()
            + (acknowledged.offsets[part[:, 0]] != part[:, 2]).sum()
        )
        for part in found
        if counted.strange == 0
    )
    return Exactness(
        name=counted.name, rows=counted.rows, lost=counted.lost, doubled=counted.doubled,
        strange=counted.strange + elsewhere,
    )  # fmt: skip


def _copied(world: World) -> Iterator[bytes]:
    """The rows of the table as CSV, in parts of whole lines."""
    whole = io.BytesIO()
    with closing(psycopg2.connect(world.dsn)) as connection, connection.cursor() as cursor:
        cursor.copy_expert("COPY (SELECT number, _partition, _offset FROM numbers) TO STDOUT (FORMAT csv)", whole)
    return _whole_lines(whole)


def _whole_lines(file: io.BufferedIOBase | io.BytesIO) -> Iterator[bytes]:
    file.seek(0)
    while part := file.read(_CHUNK):
        yield part + file.readline()


def _lines(printed: Path) -> Iterator[Numbers]:
    """What the console consumer printed: a number in each line."""
    with printed.open("rb") as file:
        for part in _whole_lines(file):
            yield np.array(part.split(), dtype=np.int64)


def _of_files(folder: Path) -> Iterator[Numbers]:
    """The rows of each epoch that the manifest shows."""
    for epoch in committed_files(str(folder)):
        for file in epoch.files:
            yield pq.read_table(file, columns=["number"])["number"].to_numpy()


def _greatest(numbers: Numbers) -> dict[int, tuple[int, ...]]:
    return {int(number) % KEYS: (int(number),) for number in numbers}


def _sums(numbers: Numbers) -> dict[int, tuple[int, ...]]:
    """What one batch over all records would count."""
    return {
        key: (len(mine), int(mine.sum()), int(mine.max()))
        for key in range(KEYS)
        if len(mine := numbers[numbers % KEYS == key])
    }


def _by_key(world: World, name: str, columns: str, expected: dict[int, tuple[int, ...]]) -> Exactness:
    rows = world.query(f"SELECT {columns} FROM {name.partition(' ')[0]}")
    found = {key: values for key, *values in rows}
    return Exactness(
        name=name, rows=len(rows), lost=len(expected.keys() - found.keys()), doubled=len(rows) - len(found),
        strange=sum(tuple(values) != expected.get(key) for key, values in found.items()),
    )  # fmt: skip
