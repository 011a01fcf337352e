"""One record, read again from its place; or why it cannot be."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from epochline.errors import RecordsGoneError
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.planning import HeldLog
from epochline.protocol.why import Content, Record


class Readable(Protocol):
    """What `epochline.adapters.Adapters.records` gives."""

    def held(self, topics: Sequence[str]) -> Mapping[tuple[str, int], HeldLog]:
        """The logs of those topics that exist, by topic and partition."""

    def session(self) -> AbstractContextManager[Any]:
        """Open the source; the session's ``read`` gives the records of a range."""


def read_again(source: Readable, record: Record, topic: str) -> Content | str:
    """The bytes of a record, or the reason in words why the source has them no more.

    Args:
        source: the record's source.
        record: its place, as the ledger names it.
        topic: its topic, as the source names it.

    Raises:
        SourceError: the source does not answer, or refuses.
    """
    if record.gone is not None:
        return record.gone
    log = source.held([topic]).get((topic, record.partition))
    if log is None:
        return f"the source has no {topic}-{record.partition} any more"
    if record.topic_id is not None and log.identity != record.topic_id:
        return f"{topic} was deleted and made again: another log has its name now"
    if record.offset < log.start:
        return f"it was deleted: the log begins at offset {log.start} now"
    if record.offset >= log.end:
        return f"the log ends at offset {log.end} now: it was cut off"
    try:
        with source.session() as session:
            for columns in session.read(
                topic, record.partition, OffsetRange(start=record.offset, until=record.offset + 1)
            ):
                return Content(
                    key=columns["key"][0], value=columns["value"][0], headers=columns["headers"][0] or (),
                    timestamp=columns["timestamp"][0],
                )  # fmt: skip
    except RecordsGoneError as error:
        return f"it was deleted while it was read ({error})"
    return "the log has no record at this offset any more: compaction removed it"
