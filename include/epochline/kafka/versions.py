"""Check that a broker is new enough before planning (P16)."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.protocol.api_key import ApiKey

from epochline.errors import SourceError

NEEDED: Mapping[ApiKey, tuple[int, str]] = {
    ApiKey.InitProducerId: (0, "transactions (Kafka 0.11)"),
    ApiKey.ListOffsets: (2, "the last stable offset (Kafka 0.11)"),
    ApiKey.Metadata: (10, "topic ids (Kafka 2.8)"),
    ApiKey.DescribeProducers: (0, "the producers of a partition (Kafka 2.8)"),
}
"""Per request, the lowest sufficient version, and what it provides."""


def check_versions(servers: str, offered: Mapping[ApiKey, tuple[int, int]]) -> None:
    """Check that a broker offers every request that a plan needs.

    Args:
        servers: the broker, as its connection names it.
        offered: per request, the lowest and highest version that the broker supports.

    Raises:
        SourceError: the broker is too old; the message names what it lacks.
    """
    lacking = [why for key, (version, why) in NEEDED.items() if offered.get(key, (0, -1))[1] < version]
    if lacking:
        raise SourceError(
            f"Kafka at {servers} is too old: it lacks {', '.join(lacking)}. Nothing was planned. Exactly-once epochs"
            " need Kafka 2.8 or newer on every broker."
        )
