"""Reads the manifest of a file sink: its committed epochs in their order, each complete.

Readers need only fsspec and the path of the folder. With PyArrow::

    for epoch in committed_files("/data/visits", after=last):
        if epoch.files:
            rows = pyarrow.dataset.dataset(list(epoch.files), format="parquet").to_table()

and with Spark::

    files = [file for epoch in committed_files("/data/visits") for file in epoch.files]
    spark.read.parquet(*files)

A consumer that stores the last ``epoch_id`` in one transaction with its own results takes each row exactly once.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

import fsspec

from epochline.errors import SinkError
from epochline.protocol.sink import StoredOffsets

MANIFEST = "_epochline/manifest"
"""Folder of the manifest, relative to the sink's folder, with one entry per committed epoch."""

_DIGEST = "digest"
_ENTRY = re.compile(r"(\d{10,})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEpoch:
    """An epoch of the manifest: its number of rows and its files. An epoch may have no rows and no files."""

    epoch_id: int
    rows: int
    files: tuple[str, ...]
    """Paths or URLs, beginning with the sink's path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFile:
    """One file of an epoch. Its path is relative to the sink's folder, so that the folder can be moved."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """The manifest's entry of an epoch."""

    pipeline: str
    generation: int
    epoch: int
    attempt: int
    token: str
    rows: int
    files: tuple[ShownFile, ...]
    reached: StoredOffsets | None = None
    """The pipeline's next offsets after the epoch, by topic; None in entries of older versions."""

    def to_json(self) -> bytes:
        """Write the entry as it is stored: with a digest in ``reached``, where older versions read past it."""
        stored = asdict(self)
        if self.reached:
            *others, last = self.reached
            stored["reached"] = [*others, {**last, _DIGEST: self._digest()}]
        return json.dumps(stored, indent=1).encode()

    def _digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Parse a stored entry.

        Raises:
            ValueError: the text is not an entry, or another one than was stored.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            files = tuple(ShownFile(**file) for file in stored.pop("files"))
            digest = stored["reached"][-1].pop(_DIGEST, None) if stored.get("reached") else None
            entry = cls(**stored, files=files)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        if digest not in (None, entry._digest()):
            raise ValueError("its values are not those of its digest")
        return entry


def entry_path(epoch_id: int) -> str:
    """Path of an epoch's entry, relative to the sink's folder."""
    return f"{MANIFEST}/{epoch_id:010d}.json"


class FileManifest:
    """Reads the manifest of one file sink."""

    def __init__(self, path: str) -> None:
        self._path = path.rstrip("/")
        # Without fsspec's cache, because an old listing lacks newer epochs.
        self._files, self._root = fsspec.url_to_fs(self._path or "/", use_listings_cache=False)
        self._root = self._root.rstrip("/")

    def epochs(self) -> list[int]:
        """Ids of the shown epochs, in order; empty if there is no manifest yet."""
        try:
            names = self._files.ls(f"{self._root}/{MANIFEST}", detail=False)
        except FileNotFoundError:
            return []
        entries = (_ENTRY.fullmatch(name.rpartition("/")[2]) for name in names)
        return sorted(int(entry[1]) for entry in entries if entry)

    def entry(self, epoch_id: int) -> ManifestEntry | None:
        """Read the entry of an epoch; None if the epoch is not shown.

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
                f"{self._path}/{path} is not an entry of a manifest ({error}), so the files of epoch {epoch_id} are"
                " unknown. Restore the entry from a backup."
            ) from error


def committed_files(path: str, *, after: int = 0) -> Iterator[CommittedEpoch]:
    """Yield the epochs that a file sink shows, in the order of their commits.

    An epoch appears complete and never changes. An epoch that is committed during a call may only appear in the next
    call; no epoch is missing before a yielded one.

    Args:
        path: the sink's folder, as declared; it may not exist before the first epoch.
        after: the last epoch that the caller has already.

    Raises:
        SinkError: an entry of the manifest is damaged.
    """
    manifest = FileManifest(path)
    newest = max(manifest.epochs(), default=0)
    # A listing is no snapshot: it may miss an epoch that was shown while it ran and yet hold the next one. A second
    # listing holds every epoch before the newest one of the first, because epochs are shown in order.
    for epoch_id in manifest.epochs():
        if after < epoch_id <= newest:
            entry = manifest.entry(epoch_id)
            # A clean-up may have deleted the entry since the listing.
            if entry is not None:
                files = tuple(f"{path.rstrip('/')}/{file.path}" for file in entry.files)
                yield CommittedEpoch(epoch_id=epoch_id, rows=entry.rows, files=files)
