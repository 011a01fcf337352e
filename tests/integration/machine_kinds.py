"""The kinds of pipeline that made-up histories have, two by two; and a simple model of what each must hold.

A record is a word for its kind and a number, which no other record has: "value 7", "bad 8" (until the parse is mended),
"gone 9" (without a value). Its number chooses its key, orders it and is its time.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import mended
from epochline import EventTime, Json, PostgresTable, Tumbling, Windowed

COLUMNS = {"k": "text", "n": "bigint", "value": "text"}
RECORD = {**COLUMNS, "at": "timestamptz"}
SUMS = {"k": "text", "n": "bigint"}
WINDOWS = {"k": "text", "window_start": "timestamptz", "window_end": "timestamptz", "n": "bigint", "records": "bigint"}
WIDTH = 8
"""Seconds of a window."""

Row = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a pipeline declares, and what operators do with it at the beginning of its history."""

    mode: str = "append"
    parser: str = "function"
    tombstone: str = "row"
    """What a record without a value does: it is a row, or to an upsert target what ``tombstone`` says. A window takes none but from a function."""
    explode: bool = False
    files: bool = False
    before_images: int = 9
    requeue: bool = False
    savepoint: bool = False
    restore: bool = False

    @property
    def possible(self) -> bool:
        tombstones: Mapping[str, Sequence[str]] = {
            "upsert": ("delete", "ignore", "quarantine"),
            "windows": ("row" if self.parser == "function" else "quarantine",),
        }
        keeps_images = self.mode in ("upsert", "add", "windows")
        # A folder takes nothing back, and no result of a window.
        return (
            (not self.explode or self.parser == "function")
            and self.tombstone in tombstones.get(self.mode, ("row",))
            and (self.before_images == 9 or (keeps_images and not self.restore))
            and (self.savepoint or not self.restore)
            and not (self.files and (self.restore or self.mode == "windows"))
        )

    def __str__(self) -> str:
        changed = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        return " ".join(name if value is True else f"{name}={value}" for name, value in changed.items()) or "plain"

    # What is declared.

    @property
    def table(self) -> PostgresTable:
        of_mode: Mapping[str, Mapping[str, Any]] = {
            "append": {"columns": COLUMNS},
            "upsert": {"columns": COLUMNS, "key": "k", "order_by": "n", "tombstone": self.tombstone},
            "add": {"columns": SUMS, "key": "k", "measures": "n"},
            "replace": {"columns": COLUMNS},
            "windows": {"columns": WINDOWS, "mode": "upsert", "key": ("k", "window_start"), "aggregated": True},
        }
        images = {} if self.mode in ("append", "replace") else {"before_images": self.before_images}
        return PostgresTable(**{"table": "t", "mode": self.mode, **of_mode[self.mode], **images})

    @property
    def held_by(self) -> str:
        """The table that has all that was read; no window is ever forgotten."""
        return "t_open" if self.mode == "windows" else "t"

    @property
    def parsing(self) -> Mapping[str, Any]:
        windows = {}
        if self.mode == "windows":
            sums = {"n": "sum(n)", "records": "count(*)"}
            time, lateness = EventTime(column="at", idle_after=timedelta(hours=1)), timedelta(days=99)
            windows["windows"] = Windowed(
                time=time, window=Tumbling(size=WIDTH), key="k", aggregates=sums, into="t", lateness=lateness
            )
        if self.parser == "json":
            return {"parse": Json(columns=RECORD), **windows}
        lists = {"explode": "value"} if self.explode else {}
        parse = "mended:parse_lists" if self.explode else "mended:parse"
        return {"parse": parse, "record": RECORD, **lists, **windows}

    def written(self, record: str) -> tuple[bytes | None, bytes | None]:
        """Key and value of a record in Kafka."""
        what, number = record.split()
        row = {"k": mended.key_of(int(number)), "n": int(number), "at": mended.time_of(int(number)).isoformat()}
        if what == "gone":
            return json.dumps(row).encode(), None
        plain = self.parser == "function" or what == "bad"
        return None, record.encode() if plain else json.dumps({**row, "value": record}).encode()

    # What must come of it.

    def is_bad(self, record: str) -> bool:
        """Whether a record goes to the quarantine now."""
        if record.startswith("bad"):
            return self.parser == "json" or not mended.MENDED
        return self.tombstone == "quarantine" and record.startswith("gone")

    def rows_of(self, record: str) -> list[Row]:
        """The rows of a good record, in their order."""
        what, number = record.split()
        values = [None] if what == "gone" else mended.elements(record) if self.explode else [record]
        return [(mended.key_of(int(number)), int(number), value) for value in values]

    def held(self, epochs: Sequence[Iterable[str]]) -> Counter[Row]:
        """What the target holds after the good records of these epochs; modes but ``replace`` know no order of them."""
        read = epochs[-1:] if self.mode == "replace" else epochs
        rows = [row for one in read for record in one if not self._ignored(record) for row in self.rows_of(record)]
        if self.mode in ("append", "replace"):
            return Counter(rows)
        if self.mode == "windows":
            return _windows(rows)
        if self.mode == "add":
            sums: dict[str, int] = defaultdict(int)
            for key, number, _ in rows:
                sums[key] += number
            return Counter(sums.items())
        newest: dict[str, tuple[int, int, Row]] = {}
        for at, row in enumerate(rows):
            key, number, _ = row
            newest[key] = max(newest.get(key, (0, 0, row)), (number, at, row), key=lambda one: one[:2])
        # Only a tombstone has no value.
        return Counter(row for _, _, row in newest.values() if row[2] is not None)

    def _ignored(self, record: str) -> bool:
        return self.tombstone == "ignore" and record.startswith("gone")


def _windows(rows: Iterable[Row]) -> Counter[Row]:
    """The sum and the number of each window's rows."""
    numbers: dict[tuple[str, int], list[int]] = defaultdict(list)
    for key, number, _ in rows:
        numbers[key, number - number % WIDTH].append(number)
    return Counter(
        (key, mended.time_of(start), mended.time_of(start + WIDTH), sum(some), len(some))
        for (key, start), some in numbers.items()
    )


FACTORS: Mapping[str, Sequence[Any]] = {
    "mode": ("append", "upsert", "add", "replace", "windows"), "parser": ("function", "json"),
    "tombstone": ("row", "delete", "ignore", "quarantine"), "explode": (False, True), "files": (False, True),
    "before_images": (9, 0), "requeue": (False, True), "savepoint": (False, True), "restore": (False, True),
}  # fmt: skip


def pairs_of(kind: Kind) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Each two things that a kind has."""
    return itertools.combinations([(name, getattr(kind, name)) for name in FACTORS], 2)


def kinds() -> list[Kind]:
    """Kinds that have each possible pair: the one with the most pairs that are missing, until none is."""
    every = [Kind(**dict(zip(FACTORS, values, strict=True))) for values in itertools.product(*FACTORS.values())]
    possible = [kind for kind in every if kind.possible]
    missing = {pair for kind in possible for pair in pairs_of(kind)}
    chosen = []
    while missing:
        best = max(possible, key=lambda kind: len(missing.intersection(pairs_of(kind))))
        missing -= set(pairs_of(best))
        chosen.append(best)
    return chosen


KINDS = kinds()
