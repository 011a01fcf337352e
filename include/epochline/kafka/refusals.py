"""Detect a refused login or certificate behind kafka-python's time-outs.

kafka-python's bootstrap retries after every error, even a wrong password, and only logs the reason. A retry cannot
help after a refusal, and some brokers lock an account after several.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError

from epochline.errors import SourceAuthenticationError


class _Refusals(logging.Handler):
    """Keeps the exceptions that kafka-python logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):
            self.seen += [arg for arg in record.args if isinstance(arg, BaseException)]


@contextmanager
def detect_refusals(servers: str, *, logging_in: bool = False) -> Iterator[None]:
    """Raise the refusal that caused an error of the block; other errors pass unchanged.

    Args:
        servers: named in the error.
        logging_in: whether the block logs in by SASL. Then a broker that closes every connection has refused the
            login: kafka-python loses the broker's answer if the connection closes right after it.

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
