"""The files of a sink, compared with the ledger, with their manifest, and with the rows that they should hold.

The ledger names each file of an epoch with its rows and bytes, so that an altered manifest is found too.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

import fsspec
import pyarrow as pa

from epochline.audit.digested_rows import DigestedRows, RowOfSink, digested
from epochline.audit.findings import Difference, EpochResult, SinkResult
from epochline.audit.session import AuditSession
from epochline.audit.topic_records import SAMPLE, SinkFindings
from epochline.declare.columns import STAGED_LINEAGE
from epochline.declare.external import Files
from epochline.errors import SinkError, SinkUnavailableError
from epochline.postgres.queries.statements import Row
from epochline.sinks.file_manifest import FileManifest, ManifestEntry, ShownFile, entry_path
from epochline.sinks.file_rows import Values, rows_as_written, rows_in
from epochline.sinks.storage import LocalDisk, reaching, storage_at

_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError)
"""What readers of formats raise for a file that is not of the format."""


class ShownFiles:
    """One folder of files.

    Args:
        connection: the audit's session.
        files: the sink, as an epoch declared it.
        number: tells the sinks of an audit apart.

    Raises:
        SinkError: the storage cannot be opened here, refuses, or does not answer.
    """

    def __init__(self, connection: AuditSession, files: Files, number: int) -> None:
        self.declared, self._files, self._name = files, files.spec, files.name
        self._storage = storage_at(files.path, files.name)
        self._manifest = FileManifest(files.path)
        self._store, self._root = fsspec.url_to_fs(files.path, use_listings_cache=False)
        self._columns = list(files.written)
        self._lineage = [name for name in files.written if name in STAGED_LINEAGE]
        self._rows = DigestedRows(connection, self._columns, number)
        self._at_first = self._epochs_there()
        """Epochs by their manifest entries and folders, before the receipts of the ledger are read."""

    @property
    def has_epochs(self) -> bool:
        """Whether the folder showed any epoch."""
        return bool(self._at_first)

    def add(self, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add rows of an epoch."""
        for values in rows_as_written(rows, self._files):
            self._rows.expect(**self._identified(epoch_id, values))

    def _identified(self, epoch_id: int, values: Values) -> dict[str, Sequence[Any]]:
        epochs = [epoch_id] * len(values[self._columns[0]])
        content = digested(*(values[name] for name in self._columns))
        if not self._lineage:
            return {"id": digested(epochs, content), "content": content, "epoch": epochs}
        topics, *numbers = ([_text(value) for value in values[name]] for name in self._lineage)
        places = list(zip(topics, *numbers, strict=True))
        return {
            "id": digested(epochs, places), "content": content, "epoch": epochs,
            "topic": [text or "" for text in topics],
            **{name[1:]: list(map(_whole, texts)) for name, texts in zip(self._lineage[1:], numbers, strict=True)},
        }  # fmt: skip

    def compare(
        self, results: Mapping[int, EpochResult], receipts: Mapping[int, Row], why_not: Mapping[int, str]
    ) -> SinkFindings:
        """Compare epochs, whose rows were added except where ``why_not`` says why not, and forget the rows.

        ``receipts`` are those of the ledger for this sink, by epoch.

        Raises:
            SinkError: the storage refuses, or does not answer.
        """
        found = SinkFindings(self._name)
        for epoch_id, result in results.items():
            why, receipt = why_not.get(epoch_id), receipts.get(epoch_id)
            epoch = _EpochOfFiles(epoch_id, receipt, found)
            said, judged = self._look_at(epoch, values=why is None)
            if said is not None or why is not None:
                self._rows.leave_out([epoch_id])
            result.sinks.append(SinkResult(sink=self._name, said=said or why, judged=judged and why is None))
        more = sum(self._rows.compare().values()) - SAMPLE
        for row in self._rows.sample(("missing", "doubled", "extra", "changed"), SAMPLE):
            found.differences.append(self._difference(row))
        if more > 0:
            found.differs("count", f"{more} further rows differ")
        self._rows.clear()
        return found

    def _look_at(self, epoch: "_EpochOfFiles", *, values: bool) -> tuple[str | None, bool]:
        """Compare an epoch's entry and files, and add their rows; return why not, if so, and whether it was judged."""
        receipt = epoch.receipt
        if receipt is None:
            return "not compared: an earlier epoch showed these records", True
        if not receipt.shown:
            return "committed, not yet shown", True
        entry, is_removed = self._entry(epoch)
        if entry is None:
            why = "its manifest entry and the ones before it were removed" if is_removed else "it has no manifest entry"
            return f"not compared: {why}", not is_removed
        target = self._storage.target(receipt.body.get("folder", ""), epoch.epoch_id)
        sealed = [
            ShownFile(path=f"{target}/{file['file']}", rows=file["rows"], bytes=file["bytes"])
            for file in receipt.body.get("files", ())
        ]
        epoch.compare(entry, sealed)
        digests = {file["file"]: file.get("sha256") for file in receipt.body.get("files", ())}
        if not self._compare_files(epoch, target, sealed, digests, values=values):
            return "values not compared: a file is gone or cannot be read", True
        return None, True

    def _entry(self, epoch: "_EpochOfFiles") -> tuple[ManifestEntry | None, bool]:
        """The manifest's entry of an epoch; if there is none, whether it was removed as the oldest ones may be."""
        path = entry_path(epoch.epoch_id)
        try:
            with reaching(self._name):
                entry = self._manifest.entry(epoch.epoch_id)
                oldest = None if entry is not None else min(self._manifest.epochs(), default=None)
        except SinkUnavailableError:
            raise
        except SinkError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            epoch.differs("changed", f"{path} is damaged: {error.__cause__}")
            return None, False
        is_removed = entry is None and oldest is not None and oldest > epoch.epoch_id
        if entry is None and not is_removed:
            epoch.differs("missing", path)
        return entry, is_removed

    def _compare_files(
        self, epoch: "_EpochOfFiles", target: str, sealed: Sequence[ShownFile], digests: Mapping[str, str | None],
        *, values: bool,
    ) -> bool:  # fmt: skip
        """Compare the files with what the ledger says of them, and add their rows; return whether all could be read."""
        sizes, whole = self._storage.sizes(target), True
        for file in sealed:
            name = file.path.rpartition("/")[2]
            size, digest = sizes.pop(name, None), digests[name]
            if size is None:
                epoch.differs("missing", file.path)
                whole = False
                continue
            wrong = [] if size == file.bytes else [f"{file.bytes} bytes were sealed, it has {size}"]
            try:
                if digest not in (None, self._digest(file.path)) and not wrong:
                    wrong.append("its bytes are not those that were written")
                rows = self._read(epoch.epoch_id, file.path, values=values)
                wrong += [] if rows == file.rows else [f"{file.rows} rows were sealed, it has {rows}"]
            except _UnreadableError as error:
                wrong.append(f"it cannot be read ({error})")
                whole = False
            if wrong:
                epoch.differs("changed", f"{file.path}: {'; '.join(wrong)}")
        for name in sorted(sizes):
            if isinstance(self._storage, LocalDisk):  # where readers may take every file of the folder
                epoch.differs("extra", f"{target}/{name} is in no manifest entry")
            else:
                epoch.found.notes.append(f"{target}/{name} is in no manifest entry")
        return whole

    def _open(self, path: str) -> Any:
        with reaching(self._name):
            return self._store.open(f"{self._root.rstrip('/')}/{path}", "rb")

    def _digest(self, path: str) -> str:
        with self._open(path) as file, reaching(self._name):
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _read(self, epoch_id: int, path: str, *, values: bool) -> int:
        """Read a file and add its rows, if their values are compared; return their number."""
        number = 0
        with self._open(path) as file:
            try:
                for some in rows_in(file, self._files.format, list(self._files.written)):
                    number += len(some[self._columns[0]])
                    if values:
                        self._rows.find(**self._identified(epoch_id, some))
            except _DAMAGED as error:
                raise _UnreadableError(type(error).__name__) from error
        return number

    def _difference(self, row: RowOfSink) -> Difference:
        topic, partition, offset, number = row.record or row.place or (None, None, None, None)
        return Difference(
            epoch_id=row.epoch_id, where=self._name, kind=row.kind, topic=topic, partition=partition, offset=offset,
            row=number, said=", ".join(row.columns) or None,
        )  # fmt: skip

    def strangers(self, known: Set[int], accepted: int) -> Iterator[Difference]:
        """Manifest entries, and on a disk folders, of epochs that the ledger does not know, after the accepted one."""
        for path, epoch_id in self._at_first.items():
            if epoch_id > accepted and epoch_id not in known:
                said = f"{path}: the ledger knows no such epoch"
                yield Difference(epoch_id=None, where=self._name, kind="extra", said=said)

    def _epochs_there(self) -> dict[str, int]:
        with reaching(self._name):
            there = {entry_path(epoch_id): epoch_id for epoch_id in self._manifest.epochs()}
            if isinstance(self._storage, LocalDisk):
                with suppress(FileNotFoundError):
                    names = [one.rpartition("/")[2] for one in self._store.ls(self._root, detail=False)]
                    there |= {one: int(one[6:]) for one in names if re.fullmatch(r"epoch=\d+", one, re.ASCII)}
        return there


class _EpochOfFiles:
    """One epoch, and what is found of it."""

    def __init__(self, epoch_id: int, receipt: Row | None, found: SinkFindings) -> None:
        self.epoch_id, self.receipt, self.found = epoch_id, receipt, found

    def differs(self, kind: str, said: str) -> None:
        self.found.differs(kind, said, self.epoch_id)

    def compare(self, entry: ManifestEntry, sealed: Sequence[ShownFile]) -> None:
        """Compare the manifest's entry with what the ledger says of the epoch."""
        assert self.receipt is not None  # noqa: S101
        path, rows = entry_path(self.epoch_id), self.receipt.rows
        if (entry.token, entry.epoch) != (self.receipt.token, self.epoch_id):
            self.differs("changed", f"{path} is of attempt {entry.attempt} of epoch {entry.epoch}")
        if entry.rows != rows:
            self.differs("count", f"{path}: {rows} rows were sealed, it says {entry.rows}")
        known, named = {file.path: file for file in sealed}, Counter(file.path for file in entry.files)
        for file in entry.files:
            was = known.get(file.path, file)
            if file != was:
                said = f"{was.rows} rows in {was.bytes} bytes were sealed, it says {file.rows} in {file.bytes}"
                self.differs("changed", f"{path}: {file.path}: {said}")
        for one in sorted(known.keys() - named.keys()):
            self.differs("missing", f"{one} is not in {path}")
        for one, times in sorted(named.items()):
            if one not in known:
                self.differs("extra", f"{one} is in {path}")
            elif times > 1:
                self.differs("doubled", f"{one} is in {path} {times} times")


class _UnreadableError(Exception):
    """A file is damaged."""


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else None if value is None else str(value)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
