"""Wrap ports with a failpoint before every call. Composition roots use it; it does nothing if none is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from epochline.failpoints.named import armed, failpoint
from epochline.failpoints.sites import USE_CASES, Site, sites_of

if TYPE_CHECKING:
    # Every Spark worker imports this package, which must not load the declarations there.
    from epochline.declare.pipeline import Pipeline
    from epochline.ports import Ledger, OffsetSource, Transaction
    from epochline.protocol.sink import Sink


def watched(ledger: Ledger) -> Ledger:
    """Returns the ledger, wrapped with failpoints if the environment names one.

    Raises:
        ConfigurationError: failpoints are forbidden here, or the failpoint does not exist.
    """
    return _WatchedLedger(ledger) if armed() else ledger


def watched_source(source: OffsetSource) -> OffsetSource:
    """Returns the source, wrapped with failpoints if the environment names one.

    Raises:
        ConfigurationError: as for `watched`.
    """
    return cast("OffsetSource", _WatchedPort(source)) if armed() else source


class _WatchedPort:
    """A port whose methods first pass the failpoint of their caller."""

    def __init__(self, port: object) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._port, name)

        def call(*args: Any, **options: Any) -> Any:
            site = _site(sys._getframe(1))
            if site is not None:
                failpoint(site.name)
            return method(*args, **options)

        return call


class _WatchedTransaction:
    """A transaction whose sides have failpoints."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def __getattr__(self, side: str) -> _WatchedPort:
        return _WatchedPort(getattr(self._transaction, side))


class _WatchedLedger:
    """A ledger with failpoints before a transaction, before its COMMIT and after it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def sink(self, pipeline: Pipeline, name: str) -> Sink:
        return cast("Sink", _WatchedPort(self._ledger.sink(pipeline, name)))

    def transaction(self) -> AbstractContextManager[Transaction]:
        site = _site(sys._getframe(1))
        return self._ledger.transaction() if site is None else self._transaction(site)

    @contextmanager
    def _transaction(self, site: Site) -> Iterator[Transaction]:
        failpoint(site.name)
        with self._ledger.transaction() as transaction:
            yield cast("Transaction", _WatchedTransaction(transaction))
            failpoint(site.commit)
        failpoint(site.committed)


def _site(caller: FrameType) -> Site | None:
    """The call that a use case's frame executes, or None if the caller is not a use case."""
    module = Path(caller.f_code.co_filename)
    if module.parent != USE_CASES:
        return None
    _, end_line, _, end_column = next(islice(caller.f_code.co_positions(), caller.f_lasti // 2, None))
    return sites_of(module)[end_line or 0, end_column or 0]
