"""What a user's log shows of kafka-python's lines."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from epochline.kafka.admin import shorten_log


class Said(logging.Handler):
    """What a handler of the root logger gets. pytest's own handlers also listen below the root."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@contextmanager
def log_of_kafka() -> Iterator[Said]:
    """Shorten the log as if nothing had been logged yet."""
    logger, root, said = logging.getLogger("kafka"), logging.getLogger(), Said()
    before, logger.handlers = logger.handlers, []
    shorten_log()
    root.addHandler(said)
    try:
        yield said
    finally:
        root.removeHandler(said)
        logger.handlers = before
