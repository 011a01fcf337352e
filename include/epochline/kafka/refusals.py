"""Why a broker could not be reached, where kafka-python says only that time is over.

Its bootstrap tries again whatever happened, a wrong password included, and keeps the reason to its log. Nothing of a
refusal gets better by trying, and some brokers lock an account by it.
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
            self.seen += [one for one in record.args if isinstance(one, BaseException)]


@contextmanager
def told_refusals(servers: str, *, logging_in: bool = False) -> Iterator[None]:
    """Raise what stands behind a time-out in the block, where it is a refusal.

    Args:
        servers: named in the error.
        logging_in: the block logs in by SASL. A broker that closes every connection then refuses the login: it answers
            and closes at once, and kafka-python drops an answer that it reads together with the end.

    Raises:
        SourceAuthenticationError: the user, the password or a certificate was refused, or a certificate's file cannot
            be used. It holds no secret.
    """
    logger, refusals = logging.getLogger("kafka"), _Refusals()
    logger.addHandler(refusals)
    try:
        yield
    except Exception as error:
        reasons = [_said(seen) for seen in (error, *refusals.seen)]
        if logging_in and _all_closed(refusals.seen):
            reasons.append("it closes every connection at the login, so user, password or mechanism are likely wrong")
        for said in reasons:
            if said is not None:
                raise SourceAuthenticationError(
                    f"Kafka at {servers}: {said}. Nothing was changed, and another try gives the same. Correct the"
                    " connection."
                ) from error
        raise
    finally:
        logger.removeHandler(refusals)


def _all_closed(seen: Sequence[BaseException]) -> bool:
    lost = [str(one) for one in seen if isinstance(one, KafkaConnectionError)]
    return bool(lost) and all("socket disconnected" in one for one in lost)


def _said(error: BaseException) -> str | None:
    if isinstance(error, SaslAuthenticationFailedError):
        return f"the user or password was refused ({error})"
    if isinstance(error, ssl.SSLError | FileNotFoundError | PermissionError):
        return f"a certificate or key cannot be used ({error})"
    if "certificate" in str(error).lower():
        return f"a certificate was refused ({error})"
    return None
