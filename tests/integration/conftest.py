"""Servers that some integration tests need beside the session's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.secure_kafka import SecureKafka


@pytest.fixture(scope="session")
def secure_kafka() -> Iterator[SecureKafka]:
    """A broker with TLS, client certificates and SASL."""
    broker = SecureKafka(Path(tempfile.mkdtemp(prefix="epochline-secure-")))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
