"""The credentials file of a job, and what is made of a failed job's message."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from epochline.config.connections import Connection
from epochline.errors import (
    ConfigurationError,
    EpochFencedError,
)
from epochline.spark.credentials import CREDENTIALS_VARIABLE, read_credentials
from epochline.spark.failure import epochline_error_from

_GOOD = {"postgres": {"dsn": "postgresql://u:hidden@h:1/d"}, "kafka": {"bootstrap.servers": "b:1"}}


def credentials_file(folder: Path, content: str, mode: int = 0o600) -> dict[str, str]:
    path = folder / "credentials.json"
    path.write_text(content)
    path.chmod(mode)
    return {CREDENTIALS_VARIABLE: str(path)}


@pytest.mark.parametrize("registries", [{}, {"one": {"url": "http://h:1", "login": "me", "password": "hidden"}}])
def test_a_private_file_is_read_and_shows_no_secret(tmp_path: Path, registries: dict[str, dict[str, str]]) -> None:
    more = {"registries": registries} if registries else {}
    credentials = read_credentials(credentials_file(tmp_path, json.dumps(_GOOD | more)))

    assert credentials.dsn == "postgresql://u:hidden@h:1/d"
    assert credentials.kafka == {"bootstrap.servers": "b:1"}
    assert credentials.registries == registries
    assert "hidden" not in repr(credentials)


def test_only_an_explicit_null_says_that_a_pipeline_reads_no_kafka(tmp_path: Path) -> None:
    """N2."""
    assert read_credentials(credentials_file(tmp_path, json.dumps(_GOOD | {"kafka": None}))).kafka == {}


def test_a_source_of_a_users_own_gets_its_connection_and_shows_no_secret(tmp_path: Path) -> None:
    """N2."""
    held = Connection(where="shop", host="h", port=1, schema="d", login="me", password="hidden", extra={"a": "b"})

    credentials = read_credentials(credentials_file(tmp_path, json.dumps(_GOOD | {"sources": {"shop": asdict(held)}})))

    assert credentials.source_connections == {"shop": held}
    assert "hidden" not in repr(credentials)


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (json.dumps(_GOOD | {"sources": {"shop": {"where": "shop", "hidden": "x"}}}), 0o600, "fields of a connection"),
        (json.dumps(_GOOD | {"sources": {"shop": "hidden"}}), 0o600, "fields of a connection"),
        (json.dumps(_GOOD | {"registries": {"one": {"login": "hidden"}}}), 0o600, "url"),
        (json.dumps(_GOOD | {"registries": {"one": {"url": "http://h", "hidden": "x"}}}), 0o600, "url"),
        (json.dumps(_GOOD | {"registries": ["hidden"]}), 0o600, "url"),
        (json.dumps(_GOOD), 0o644, "chmod 600"),
        ("hidden{", 0o600, "not JSON"),
        (json.dumps({"postgres": {"dsn": "hidden"}, "kafka": _GOOD["kafka"]}), 0o600, "dsn"),
        (json.dumps({"postgres": _GOOD["postgres"]}), 0o600, "bootstrap.servers"),
        (json.dumps(["hidden"]), 0o600, "dsn"),
    ],
    ids=[
        "source with a stranger", "no connection", "registry without url", "registry with a stranger", "no registries", "readable by others", "no JSON", "bad DSN",
        "no servers", "no object",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_without_showing_it(
    tmp_path: Path, content: str, mode: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_credentials(credentials_file(tmp_path, content, mode))

    assert "hidden" not in str(raised.value)


def test_a_missing_variable_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=CREDENTIALS_VARIABLE):
        read_credentials({})
    with pytest.raises(ConfigurationError, match="absent"):
        read_credentials({CREDENTIALS_VARIABLE: str(tmp_path / "absent")})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Traceback\n  File x\nepochline.errors.EpochFencedError: gone\n", EpochFencedError),
        ("java.lang.OutOfMemoryError", type(None)),
        ("epochline.errors.Nonsense: x", type(None)),
    ],
    ids=["ours", "foreign", "no such class"],
)
def test_a_failed_jobs_text_says_what_happened(text: str, kind: type) -> None:
    assert type(epochline_error_from(RuntimeError(text))) is kind
