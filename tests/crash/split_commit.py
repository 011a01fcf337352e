"""The product's commit with its transaction split, over the product's sinks: NOT modes of the product (G1 to G4, P3).

The product plans, stages and seals. Then, by semantics:

- ``at_most_once``: the offsets and the epoch are committed first, each table's rows after them; a topic or a folder
  that was tried is taken for shown. A crash in between loses what was not written.
- ``at_least_once``: each table's rows are committed first, then the offsets and the epoch; a topic gets its rows
  without a transaction. A crash in between lets the retry write the rows again.
- ``log_then_replay``: the staged rows are a durable log. The offsets are committed first, then the log is replayed into
  one table after the other, and noted as replayed at the end. A crash in between lets the retry replay the log again.
- ``exactly_once``: nothing is split.

`tests/crash/test_semantics.py` kills each at every failpoint, and writes docs/semantics.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.ports import Applied
from epochline.ports.targets import Upserted
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Epoch
from epochline.protocol.staging import StagedTable

Semantics = Literal["at_most_once", "at_least_once", "log_then_replay", "exactly_once"]
SEMANTICS: tuple[Semantics, ...] = ("at_most_once", "at_least_once", "log_then_replay", "exactly_once")

Passing = Callable[[str], None]
"""Called between two durable steps with the name of the place; a test may end the process there."""


class SplitLedger:
    """The product's ledger, whose transactions do not hold the rows of tables; ``log`` is for ``log_then_replay``."""

    def __init__(self, ledger: PostgresLedger, semantics: Semantics, log: Path, passing: Passing) -> None:
        self._ledger, self._semantics, self._log, self._passing = ledger, semantics, log, passing

    def transaction(self) -> AbstractContextManager[Any]:
        return self._ledger.transaction() if self._semantics == "exactly_once" else self._split()

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        sink = self._ledger.sink(pipeline, name)
        return _TriedOnce(sink) if self._semantics == "at_most_once" else sink

    @contextmanager
    def _split(self) -> Iterator[Any]:
        later: list[_Rows] = []
        with self._ledger.transaction() as tx:
            yield _SplitTransaction(tx, self._apply if self._semantics == "at_least_once" else later.append)
            if later and self._semantics == "log_then_replay":
                entry = [[rows.sink.table, asdict(rows.staged), rows.epoch.epoch_id] for rows in later]
                self._log.write_text(json.dumps(entry, default=sorted))
        if later:
            self._passing("after the offsets")
        for rows in later:
            self._apply(rows)
        if later:
            self._log.unlink(missing_ok=True)
            self._passing("after the replay was noted")

    def replay(self, pipeline: Pipeline) -> None:
        """Replay the rows of a log that is not noted as replayed, from its beginning."""
        if not self._log.exists():
            return
        for table, staged, epoch_id in json.loads(self._log.read_text()):
            with self._ledger.transaction() as tx:
                epoch = tx.epochs.find(pipeline.name, epoch_id)
            if epoch is None:
                raise ValueError(f"the ledger has no epoch {epoch_id}")
            sink = next(sink for sink in pipeline.tables if sink.table == table)
            staged |= {"not_null": frozenset(staged["not_null"])}
            self._apply(_Rows(pipeline, sink, StagedTable(**staged), epoch))
        self._log.unlink()

    def _apply(self, rows: _Rows) -> None:
        with self._ledger.transaction() as own:
            own.targets.apply(rows.pipeline, [(rows.sink, rows.staged)], rows.epoch)
        self._passing(f"after the rows of mode {rows.sink.mode}")


@dataclass(frozen=True)
class _Rows:
    pipeline: Pipeline
    sink: PostgresTable
    staged: StagedTable
    epoch: Epoch


class _SplitTransaction:
    def __init__(self, tx: Any, take: Callable[[_Rows], None]) -> None:
        self._tx = tx
        self.targets = _SplitTargets(tx, take)
        self.attempts = _Keeping(tx.attempts)

    def __getattr__(self, side: str) -> Any:
        return getattr(self._tx, side)


class _SplitTargets:
    def __init__(self, tx: Any, take: Callable[[_Rows], None]) -> None:
        self._tx, self._take = tx, take

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx.targets, name)

    def apply(
        self, pipeline: Pipeline, tables: Sequence[tuple[PostgresTable, StagedTable]], epoch: Epoch
    ) -> Mapping[str, Applied]:
        """Hand over the rows, and say of each that it was inserted. An outbox is no target."""
        kept = [(sink, staged) for sink, staged in tables if sink not in pipeline.targets]
        applied: dict[str, Applied] = dict(self._tx.targets.apply(pipeline, kept, epoch))
        for sink, staged in tables:
            if sink in pipeline.targets:
                rows = self._tx.targets.count(staged)
                self._take(_Rows(pipeline, sink, staged, epoch))
                inserted = Upserted(inserted=rows, updated=0, deleted=0, superseded=0, unchanged=0)
                applied[sink.table] = Applied(rows=rows, upserted=inserted if sink.mode == "upsert" else None)
        return applied


class _Keeping:
    def __init__(self, attempts: Any) -> None:
        self._attempts = attempts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attempts, name)

    def drop_staging(self, attempt: Any) -> None:
        """Keep the staged rows: they are applied later, or again."""


class _TriedOnce:
    """A sink that takes an epoch for shown once it was tried."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def recover_and_commit(self, committable: Any) -> None:
        """An earlier process tried it."""
