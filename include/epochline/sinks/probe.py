"""The probe of a file sink's store: whether no two tries could show an epoch twice there."""

import errno
import uuid

from epochline.errors import SinkError
from epochline.failpoints import failpoint
from epochline.sinks.storage import LocalDisk, Storage

PROBES = "_epochline/probe"
"""Folder of the files of `probe`, relative to the sink's folder."""


def probe(storage: Storage, sink: str) -> None:
    """Check that a store keeps the first of two files with one name, and lists a new file.

    Writes a file below `PROBES` and removes it. A crash may leave the file behind. On a disk nothing is checked.

    Raises:
        SinkError: the store does not do so, refuses to, or lacks the bucket.
        SinkUnavailableError: the store does not answer.
    """
    failpoint("files.probe")
    if isinstance(storage, LocalDisk):
        return
    name = uuid.uuid4().hex
    path = f"{PROBES}/{name}"
    try:
        for data in (b"first", b"second"):
            storage.put(path, data, scratch=PROBES)
        listed, kept = name in storage.sizes(PROBES), storage.read(path)
        storage.remove_file(path)
    except SinkError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise SinkError(f"{sink}: the bucket does not exist. Nothing was planned. Create it.") from error
        if getattr(error.__cause__, "errno", None) == errno.ENOSYS:
            raise _refusal(sink, "does not know If-None-Match") from error
        raise
    if kept != b"first":
        raise _refusal(sink, "overwrites a file in spite of If-None-Match")
    if not listed:
        raise _refusal(sink, "does not list a new file at once")


def _refusal(sink: str, behaviour: str) -> SinkError:
    return SinkError(
        f"{sink}: the store {behaviour}, so two tries could show an epoch twice. Nothing was planned. Use a store that"
        " docs/files.md names, or another version or setting of this one."
    )
