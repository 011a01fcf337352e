"""A folder of files as a sink: by an atomic rename on a disk, and by a manifest everywhere (ADR 0036).

Below the sink's folder::

    _epochline/staging/e7_a1_4f1c09be/part-00003-….parquet          files that an attempt writes
    _epochline/staging/e7_a1_4f1c09be/sealed/part-00003-….parquet   (on a disk) files that its seal found complete
    epoch=0000000007/part-00003-….parquet                           (on a disk) the same folder after the commit
    _epochline/manifest/0000000007.json                             the shown epoch: its files and number of rows

The entry in the manifest is the commit. Any process can repeat every step before it.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epochline.declare.specs import FilesSpec
from epochline.errors import SealRefusedError, SinkAheadError, SinkError, SinkUnavailableError
from epochline.failpoints import failpoint
from epochline.protocol.sink import Committable, ShownEpoch, Sink, SinkAttempt, WrittenPart
from epochline.sinks.file_manifest import FileManifest, ManifestEntry, ShownFile, entry_path
from epochline.sinks.probe import probe
from epochline.sinks.storage import STAGING, reaching, storage_at

if TYPE_CHECKING:
    from epochline.sinks.file_part import FilePart


class FileSink(Sink):
    """A folder of files. Every step raises `SinkUnavailableError` if the storage does not answer.

    Raises:
        SinkError: fsspec cannot open the URL here.
    """

    def __init__(self, files: FilesSpec) -> None:
        self._files = files
        self._storage = storage_at(files.path, files.name)
        self._manifest = FileManifest(files.path)

    def prepare(self, pipeline: str) -> None:
        """Check that the store keeps the first of two manifest entries of one epoch, which only a write shows."""
        probe(self._storage, self._files.name)

    def begin(self, attempt: SinkAttempt) -> None:
        """Make the attempt's folder.

        Raises:
            SinkAheadError: the manifest shows this epoch or a later one.
            SinkError: another pipeline writes here, or this user may not.
        """
        failpoint("files.begin")
        self._refuse_out_of_turn(attempt)
        self._storage.make_folder(_folder(attempt))

    def write(self, attempt: SinkAttempt, part: int) -> FilePart:
        """Open one file for one Spark partition, under a unique name for each try."""
        # Imported here, because only writers of rows need Arrow; a commit or a publish writes none.
        from epochline.sinks.file_part import FilePart

        name = f"part-{part:05d}-{uuid.uuid4().hex}.{self._files.format}"
        return FilePart(self._files, self._storage, _folder(attempt), name)

    def seal(self, attempt: SinkAttempt, parts: Sequence[WrittenPart]) -> Mapping[str, Any]:
        """Collect the files that the parts name, and check the size of each."""
        for part in parts:
            if part.message.get("rows", 0) != part.rows:
                raise SealRefusedError(
                    f"{attempt} in {self._files}: part {part.number} has {part.rows} rows, but its file has"
                    f" {part.message.get('rows', 0)}. Nothing was sealed."
                )
        written = [dict(part.message) for part in parts if part.rows]
        failpoint("files.seal")
        folder = self._storage.gather(_folder(attempt), [file["file"] for file in written])
        sizes = self._storage.sizes(folder)
        for file in written:
            size = sizes.get(file["file"])
            if size != file["bytes"]:
                state = "is missing" if size is None else f"has {size} bytes of {file['bytes']}"
                raise SealRefusedError(
                    f"{attempt} in {self._files}: {folder}/{file['file']} {state}. Nothing was sealed. Check that"
                    " executors and driver see the same folder."
                )
        return {"folder": folder, "files": written}

    def check_sealed(self, committable: Committable) -> None:
        """Look for the files, which another machine may have sealed on a disk of its own."""
        attempt, sealed = committable.attempt, committable.body["folder"]
        target = self._storage.target(sealed, attempt.epoch_id)
        if self._is_complete(committable, sealed):
            self._refuse_rotten(
                committable,
                sealed,
                "committed. Let the range be read again: run"
                f" `epochline abort {attempt.pipeline} {attempt.epoch_id} --reason …`",
            )
        elif not self._is_complete(committable, target):
            raise SinkError(
                f"{attempt} in {self._files}: {sealed} of {socket.gethostname()} lacks sealed files. Nothing was"
                " committed. Give every worker the same folder, or let the range be read again: run"
                f" `epochline abort {attempt.pipeline} {attempt.epoch_id} --reason …`"
            )

    def commit(self, committable: Committable) -> None:
        """Show the files: rename their folder on a disk, then add the manifest's entry. A repeat changes nothing.

        Raises:
            SinkAheadError: the manifest shows another attempt of this epoch, or a later epoch.
            SinkError: the files are lost, or another pipeline writes here.
        """
        attempt, body = committable.attempt, committable.body
        target = self._storage.target(body["folder"], attempt.epoch_id)
        if not self._is_shown(attempt):
            self._refuse_out_of_turn(attempt)
            if body["files"]:
                self._move(committable, target)
            failpoint("files.manifest")
            try:
                entry = _entry(committable, target)
                self._storage.put(entry_path(entry.epoch), entry.to_json(), scratch=_folder(attempt))
            except SinkUnavailableError:
                # The answer was lost, or another process was faster and has already cleaned up.
                if not self._is_shown(attempt):
                    raise
            else:
                self._refuse_another_entry(attempt)
            failpoint("files.shown")
        shown = frozenset(file["file"] for file in body["files"]) if target == body["folder"] else frozenset()
        self._storage.remove(_folder(attempt), keep=shown)

    def abort(self, attempt: SinkAttempt) -> None:
        """Remove the attempt's folder and nothing else. A repeat changes nothing; a shown attempt is kept."""
        failpoint("files.abort")
        if not self._is_shown(attempt):
            self._storage.remove(_folder(attempt))

    def newest_shown(self, pipeline: str) -> ShownEpoch | None:
        """The last epoch of the manifest."""
        newest = self._newest()
        if newest is None:
            return None
        self._refuse_another(newest, pipeline)
        return ShownEpoch(
            generation=newest.generation, epoch_id=newest.epoch, token=newest.token, reached=newest.reached
        )

    def _move(self, committable: Committable, target: str) -> None:
        attempt, sealed = committable.attempt, committable.body["folder"]
        if self._is_complete(committable, sealed):
            self._refuse_rotten(committable, sealed, "shown. Restore the file from a backup, and try again.")
            failpoint("files.rename")
            if not self._storage.move(sealed, target):
                raise SinkAheadError(
                    f"{attempt} in {self._files}: {target} holds other files, which the ledger does not know: the"
                    " ledger went back in time, as from a backup. Nothing was shown. Find out where the files come"
                    f" from, and move {target} away if they are obsolete.",
                    f"publish {attempt.pipeline}",
                )
        elif not self._is_complete(committable, target):
            raise SinkError(
                f"{attempt} in {self._files}: the files of the committed epoch {attempt.epoch_id} are lost; neither"
                f" {sealed} nor {target} of {socket.gethostname()} has all of them. Nothing was shown. Give every"
                " worker the same folder, or restore the files from a backup."
            )
        self._storage.settle(target)
        failpoint("files.renamed")

    def _is_complete(self, committable: Committable, folder: str) -> bool:
        sizes = self._storage.sizes(folder)
        return all(sizes.get(file["file"]) == file["bytes"] for file in committable.body["files"])

    def _refuse_rotten(self, committable: Committable, folder: str, rest: str) -> None:
        """Compare the bytes of complete files with what their tasks wrote; older versions noted no digest."""
        for file in committable.body["files"]:
            path = f"{folder}/{file['file']}"
            if "sha256" in file and self._storage.digest(path) not in (None, file["sha256"]):
                raise SinkError(
                    f"{committable.attempt} in {self._files}: {path} of {socket.gethostname()} holds other bytes than"
                    f" were written: it was changed, or rotted. Nothing was {rest}"
                )

    def _is_shown(self, attempt: SinkAttempt) -> bool:
        with reaching(self._files.name):
            entry = self._manifest.entry(attempt.epoch_id)
        return entry is not None and entry.token == attempt.token

    def _refuse_another_entry(self, attempt: SinkAttempt) -> None:
        """Check that the epoch's entry is this attempt's: a store keeps the first one, whoever wrote it."""
        if not self._is_shown(attempt):
            self._refuse_out_of_turn(attempt)
            raise SinkUnavailableError(f"{self._files.name} did not store the manifest entry of {attempt}. Try again.")

    def _refuse_out_of_turn(self, attempt: SinkAttempt) -> None:
        """Check that the newest epoch of the manifest is an earlier epoch of the same pipeline."""
        newest = self._newest()
        if newest is None:
            return
        self._refuse_another(newest, attempt.pipeline)
        if newest.epoch >= attempt.epoch_id:
            raise SinkAheadError(
                f"{attempt}: {self._files} already shows epoch {newest.epoch}, by attempt {newest.attempt}, which the"
                " ledger does not know: the ledger went back in time, as from a backup. Nothing was written. Bring the"
                " newer ledger back. If it is lost, the command takes over what the folder shows and continues.",
                f"accept-ledger {attempt.pipeline} --reason …",
            )

    def _newest(self) -> ManifestEntry | None:
        with reaching(self._files.name):
            epochs = self._manifest.epochs()
            return self._manifest.entry(epochs[-1]) if epochs else None

    def _refuse_another(self, newest: ManifestEntry, pipeline: str) -> None:
        if newest.pipeline != pipeline:
            raise SinkError(
                f"{self._files} is written by the pipeline {newest.pipeline}; {pipeline} wrote nothing there. Give each"
                " pipeline its own folder."
            )


def _folder(attempt: SinkAttempt) -> str:
    return f"{STAGING}/e{attempt.epoch_id}_a{attempt.attempt}_{attempt.token[:8]}"


def _entry(committable: Committable, folder: str) -> ManifestEntry:
    attempt = committable.attempt
    return ManifestEntry(
        pipeline=attempt.pipeline,
        generation=attempt.generation,
        epoch=attempt.epoch_id,
        attempt=attempt.attempt,
        token=attempt.token,
        rows=committable.rows,
        reached=committable.reached,
        files=tuple(
            ShownFile(path=f"{folder}/{file['file']}", rows=file["rows"], bytes=file["bytes"])
            for file in committable.body["files"]
        ),
    )
