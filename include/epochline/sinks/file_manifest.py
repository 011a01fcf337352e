"""Following a file sink: the epochs that its manifest shows, in their order, each of them whole (P5, Q5).

Needs fsspec alone, and nothing of a pipeline. With PyArrow::

    for epoch in committed_files("/data/visits", after=last):
        if epoch.files:
            rows = pyarrow.dataset.dataset(list(epoch.files), format="parquet").to_table()

and with Spark::

    files = [file for epoch in committed_files("/data/visits") for file in epoch.files]
    spark.read.parquet(*files)

Who keeps the last ``epoch_id`` together with what was made of its rows takes each row exactly once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import fsspec

from epochline.errors import SinkError
from epochline.protocol.sink import StoredOffsets

MANIFEST = "_epochline/manifest"
"""The folder of the manifest, below the sink's own: one entry per committed epoch."""

_ENTRY = re.compile(r"(\d{10,})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEpoch:
    """An epoch that the manifest shows: its rows and where they are; none of either is an epoch too."""

    epoch_id: int
    rows: int
    files: tuple[str, ...]
    """Whole paths, or URLs as the sink's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFile:
    """One file of an epoch; its path is relative to the sink's folder, which may be moved as a whole."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """What the manifest says of an epoch."""

    pipeline: str
    generation: int
    epoch: int
    attempt: int
    token: str
    rows: int
    files: tuple[ShownFile, ...]
    reached: StoredOffsets | None = None
    """Where the pipeline stands with the epoch, by topic; None in entries of versions that did not write it."""

    @property
    def path(self) -> str:
        """Where it is, below the sink's folder."""
        return entry_path(self.epoch)

    def to_json(self) -> bytes:
        """The entry as it is stored."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ManifestEntry:
        """The entry that `to_json` gave.

        Raises:
            ValueError: it is none.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            files = tuple(ShownFile(**file) for file in stored.pop("files"))
            return cls(**stored, files=files)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


def entry_path(epoch_id: int) -> str:
    """Where the manifest's entry of an epoch is, below the sink's folder."""
    return f"{MANIFEST}/{epoch_id:010d}.json"


class Manifest:
    """The manifest of one sink's folder, read only.

    Args:
        path: of the folder, as the sink's declaration names it.
    """

    def __init__(self, path: str) -> None:
        self._path = path.rstrip("/")
        # What was listed once must not be taken for what is there now.
        self._files, self._root = fsspec.url_to_fs(self._path or "/", use_listings_cache=False)
        self._root = self._root.rstrip("/")

    def epochs(self) -> list[int]:
        """The epochs that are shown, in order; none where there is no manifest yet."""
        try:
            names = self._files.ls(f"{self._root}/{MANIFEST}", detail=False)
        except FileNotFoundError:
            return []
        entries = (_ENTRY.fullmatch(name.rpartition("/")[2]) for name in names)
        return sorted(int(entry[1]) for entry in entries if entry)

    def entry(self, epoch_id: int) -> ManifestEntry | None:
        """What the manifest says of an epoch; None where it is not shown.

        Raises:
            SinkError: the entry is damaged.
        """
        path = entry_path(epoch_id)
        try:
            text = self._files.cat_file(f"{self._root}/{path}")
        except FileNotFoundError:
            return None
        try:
            return ManifestEntry.from_json(text)
        except ValueError as error:
            raise SinkError(
                f"{self._path}/{path} is no entry of a manifest ({error}), so nobody can tell the files of epoch"
                f" {epoch_id}. Put the file back from a backup."
            ) from error


def committed_files(path: str, *, after: int = 0) -> Iterator[CommittedEpoch]:
    """The epochs that a file sink shows, in the order in which they were committed.

    An epoch appears at once and whole, and never changes. One that is shown while this runs may be left to the next
    call; none is left out before one that is given.

    Args:
        path: of the sink's folder, as its declaration names it; nothing is there before the first epoch.
        after: the last epoch that the caller has already.

    Raises:
        SinkError: an entry of the manifest is damaged.
    """
    manifest = Manifest(path)
    newest = max(manifest.epochs(), default=0)
    # A listing is no snapshot: it may miss an epoch that was shown while it ran and hold the next one. What is older
    # than an epoch that was seen, a second listing holds for sure, because epochs are shown in order.
    for epoch_id in manifest.epochs():
        if after < epoch_id <= newest:
            entry = manifest.entry(epoch_id)
            # Whoever cleans up may have taken it away in between.
            if entry is not None:
                files = tuple(f"{path.rstrip('/')}/{file.path}" for file in entry.files)
                yield CommittedEpoch(epoch_id=epoch_id, rows=entry.rows, files=files)
