"""Say each line of kafka-python's log once, then once a minute with the number of repeats.

While a broker is away, kafka-python logs the same lines several times a second. Its errors reach the operator as
exceptions.
"""

from __future__ import annotations

import copy
import logging
import re
import time

_EVERY_SECONDS = 60.0
_KEPT = 1_000
# "backoff 0.42 secs" differs from one repeat to the next.
_DURATION = re.compile(r"\d+\.\d+ sec")


class RepeatsOnceAMinute(logging.Handler):
    """Passes a record to the root logger's handlers, unless an equal one was passed in the last minute."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[tuple[str, str], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record on, or count it. The next one that is passed tells the count."""
        text = record.getMessage()
        line, now = (record.name, _DURATION.sub("sec", text)), time.monotonic()
        passed_at, left_out = self._passed.get(line, (now - _EVERY_SECONDS, 0))
        if now - passed_at < _EVERY_SECONDS:
            self._passed[line] = passed_at, left_out + 1
            return
        if len(self._passed) >= _KEPT:
            self._passed.clear()
        self._passed[line] = now, 0
        if left_out:
            record = copy.copy(record)
            record.msg, record.args = f"{text} ({left_out} times more in the last {now - passed_at:.0f} s)", None
        logging.getLogger().callHandlers(record)


def shorten_log() -> None:
    """Make kafka-python say each warning and error once a minute, and nothing less severe. A repeat changes nothing."""
    logger = logging.getLogger("kafka")
    # kafka-python logs forty lines about sockets per request.
    logger.setLevel(logging.WARNING)
    if not any(isinstance(one, RepeatsOnceAMinute) for one in logger.handlers):
        # A handler, and not a filter: `detect_refusals` reads every line, also those that are left out.
        logger.addHandler(RepeatsOnceAMinute())
        logger.propagate = False
