"""Say each line of kafka-python's log once a minute, and find a refused login behind its time-outs.

While a broker is away, kafka-python logs the same lines several times a second. Its bootstrap retries after every
error, even a wrong password, and only logs the reason. A retry cannot help then, and some brokers lock an account after
several.
"""

import copy
import logging
import re
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError

from epochline.errors import SourceAuthenticationError

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
    if not any(isinstance(handler, RepeatsOnceAMinute) for handler in logger.handlers):
        # A handler, and not a filter: `detect_refusals` reads every line, also those that are left out.
        logger.addHandler(RepeatsOnceAMinute())
        logger.propagate = False


class _Refusals(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):
            self.seen += [arg for arg in record.args if isinstance(arg, BaseException)]


@contextmanager
def detect_refusals(servers: str, *, logging_in: bool = False) -> Iterator[None]:
    """Raise the refusal that caused an error of the block; other errors pass unchanged.

    With ``logging_in`` the block logs in by SASL. Then a broker that closes every connection has refused the login:
    kafka-python loses the broker's answer if the connection closes right after it.

    Raises:
        SourceAuthenticationError: a broker refused the user, the password or a certificate, or a certificate's file
            cannot be used. The message holds no secret.
    """
    logger, refusals = logging.getLogger("kafka"), _Refusals()
    logger.addHandler(refusals)
    try:
        yield
    except Exception as error:
        reasons = [_refusal(seen) for seen in (error, *refusals.seen)]
        if logging_in and _all_closed(refusals.seen):
            reasons.append("it closes every connection at the login, so user, password or mechanism are likely wrong")
        for reason in reasons:
            if reason is not None:
                raise SourceAuthenticationError(
                    f"Kafka at {servers}: {reason}. Nothing was changed, and a retry does not help."
                    " Correct the connection."
                ) from error
        raise
    finally:
        logger.removeHandler(refusals)


def _all_closed(seen: Sequence[BaseException]) -> bool:
    lost = [str(error) for error in seen if isinstance(error, KafkaConnectionError)]
    return bool(lost) and all("socket disconnected" in text for text in lost)


def _refusal(error: BaseException) -> str | None:
    if isinstance(error, SaslAuthenticationFailedError):
        return f"the user or password was refused ({error})"
    if isinstance(error, ssl.SSLError | FileNotFoundError | PermissionError):
        return f"a certificate or key cannot be used ({error})"
    if "certificate" in str(error).lower():
        return f"a certificate was refused ({error})"
    return None
