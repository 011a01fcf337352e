"""Every kind of sink, as the contract suite needs it: how it is declared, and what a reader of it sees.

Also steps for processes, as `sinks_step` has them: whole runs, whose lease is over soon after they were killed.
"""

import re
import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
from psycopg2 import sql

from epochline import CustomSink, Files, KafkaTopic, PostgresTable, Text
from epochline.coordinator import abort
from epochline.protocol.epoch import AbortOutcome
from epochline.protocol.staging import StagingTicket
from epochline.sinks.file_manifest import committed_files
from tests.databases import query
from tests.driver import epoch_of
from tests.integration import sinks_step
from tests.integration.sinks_world import SinksPipeline, values
from tests.reading import rows_in_folder

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"
BRIEF = timedelta(seconds=0.2)
"""The lease of runs that are killed: the next run waits for its end."""

COLUMNS = {"value": "text"}


@dataclass
class Table:
    """As each kind: what it is declared as, what a reader sees, what lies there unseen, and how an attempt is spoilt."""

    _mode: str
    follows = False
    """Whether it shows an epoch after its commit."""

    def declare(self) -> PostgresTable:
        key = ("value",) if self._mode == "upsert" else ()
        return PostgresTable(table="lines", columns=COLUMNS, mode=self._mode, key=key)

    def read(self, world: SinksPipeline) -> list[str | None]:
        return [value for (value,) in world.it.sql("SELECT value FROM lines ORDER BY value")]

    def left(self, world: SinksPipeline) -> int:
        return int(world.it.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'epochline_staging'")[0][0])

    def spoil(self, world: SinksPipeline, ticket: StagingTicket) -> None:
        _delete_staged(world, ticket.table("lines").table)


class Topic:
    follows = True

    def declare(self) -> KafkaTopic:
        return KafkaTopic(topic="out", value=Text())

    def read(self, world: SinksPipeline) -> list[str | None]:
        return values(world.seen())

    def left(self, world: SinksPipeline) -> int:
        return world.outbox()

    def spoil(self, world: SinksPipeline, ticket: StagingTicket) -> None:
        (box,) = world.it.pipeline.outboxes
        _delete_staged(world, ticket.table(box.table).table)


@dataclass
class Folder:
    path: str
    follows = True

    def declare(self) -> Files:
        return Files(path=self.path, columns=COLUMNS)

    def read(self, world: SinksPipeline) -> list[str | None]:
        return sorted((row["value"] for row in rows_in_folder(self.path)), key=str)

    def left(self, world: SinksPipeline) -> int:
        return len(self._unshown())

    def spoil(self, world: SinksPipeline, ticket: StagingTicket) -> None:
        self.clean_up()

    @property
    def takes_late_files(self) -> bool:
        """Whether a task can write into the folder of an attempt that ended, which only a disk refuses."""
        return not self.path.startswith("/")

    def clean_up(self) -> None:
        """Remove the files that no manifest entry names, as the page on files allows."""
        store, _ = fsspec.url_to_fs(self.path)
        for file in self._unshown():
            store.rm_file(fsspec.url_to_fs(file)[1])

    def _unshown(self) -> set[str]:
        store, path = fsspec.url_to_fs(self.path)
        prefix = self.path.removesuffix(path)
        store.invalidate_cache()
        files = {prefix + file for file in store.find(path) if file.endswith(".parquet")}
        return files - {file for epoch in committed_files(self.path) for file in epoch.files}


@dataclass
class Sqlite:
    """The own sink of the page."""

    _path: str
    follows = True

    def declare(self) -> CustomSink:
        return CustomSink(sink="sqlite_sink:SqliteSink", options={"path": self._path}, columns=COLUMNS)

    def read(self, world: SinksPipeline) -> list[str | None]:
        return [value for (value,) in self._sql("SELECT value FROM line ORDER BY value")]

    def left(self, world: SinksPipeline) -> int:
        staged = "SELECT count(*) FROM staged UNION ALL SELECT count(*) FROM attempt"
        return sum(rows for (rows,) in self._sql(staged))

    def spoil(self, world: SinksPipeline, ticket: StagingTicket) -> None:
        self._sql(f"DELETE FROM staged WHERE token = '{ticket.sink_attempt.token}'")

    def _sql(self, statement: str) -> list[tuple[Any, ...]]:
        if not Path(self._path).exists():
            return []
        with closing(sqlite3.connect(self._path)) as database, database:
            return database.execute(statement).fetchall()


Kind = Table | Topic | Folder | Sqlite

IN_PROCESSES = ("append", "upsert", "topic", "files", "own")
"""Kinds whose sink is the same for two processes."""

ALL = (*IN_PROCESSES, "memory")
FOLLOWING = ("topic", "files", "own", "memory")


def kind_of(name: str, folder: Path) -> Kind:
    kinds: dict[str, Kind] = {
        "append": Table("append"), "upsert": Table("upsert"), "topic": Topic(), "files": Folder(str(folder / "files")),
        "memory": Folder(f"memory://{uuid.uuid4().hex}/lines"), "own": Sqlite(str(folder / "lines.db")),
    }  # fmt: skip
    return kinds[name]


def write_sink_of_the_page(folder: Path) -> None:
    """The page's sink as the file that the page says it is, so that it can be imported from the folder."""
    (code,) = re.findall(r"^`spark_jobs/sqlite_sink.py`:\n\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (folder / "sqlite_sink.py").write_text(code)


def _delete_staged(world: SinksPipeline, table: str) -> None:
    query(world.it.dsn, sql.SQL("DELETE FROM {}").format(sql.Identifier("epochline_staging", table)))


RUN = "tests.integration.sink_kinds:take_run"
"""What takes a run in a process of its own."""


class Runs(sinks_step.Watched):
    """Whole runs, in a process of their own."""

    lease = BRIEF

    def shown(self) -> Sequence[object]:
        """A run that goes well."""
        return [self.epoch(lease=BRIEF), *self.publish()]

    def sealed_and_aborted(self) -> AbortOutcome:
        """A run whose sealed epoch an operator aborts."""
        planned, run, _ = self.sealed(lease=BRIEF)
        name, epoch_id = self.pipeline.name, epoch_of(planned).epoch_id
        return abort(self.ledger, name, epoch_id, run, reason="the test says so", by_operator=True)


def take_run() -> None:
    """Take the run that the environment names."""
    sinks_step.take_step(Runs)
