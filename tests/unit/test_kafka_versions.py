"""Brokers of every age, by what they say that they speak."""

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from epochline.errors import SourceError
from epochline.kafka.admin import check_versions


def spoken_by(version: tuple[int, ...]) -> dict[ApiKey, tuple[int, int]]:
    return {ApiKey(key): versions for key, versions in BROKER_API_VERSIONS[version].items()}


@pytest.mark.parametrize("version", sorted(v for v in BROKER_API_VERSIONS if v >= (2, 8)))
def test_a_broker_since_2_8_will_do(version: tuple[int, ...]) -> None:
    """P16."""
    check_versions("here:9092", spoken_by(version))


@pytest.mark.parametrize("version", sorted(v for v in BROKER_API_VERSIONS if v < (2, 8)))
def test_an_older_broker_is_refused_by_what_it_lacks(version: tuple[int, ...]) -> None:
    """P16: a retry does not make it newer."""
    with pytest.raises(SourceError, match=r"here:9092 is too old: it lacks .*topic ids") as refused:
        check_versions("here:9092", spoken_by(version))

    assert not refused.value.retryable
    assert ("transactions" in str(refused.value)) == (version < (0, 11))
