"""A record to send to a topic, and how a line of a file becomes one: as its value, or as a JSON object. Pure."""

import base64
import enum
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_MEMBERS = ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_UNIX_EPOCH = datetime.fromtimestamp(0, UTC)


class Partitioner(enum.StrEnum):
    """What chooses the partition of a record with a key. The others go to the partitions in turn."""

    MURMUR2 = "murmur2"
    """The key's hash, as in Kafka's Java producer and in a `KafkaTopic` of a pipeline."""
    CONSISTENT = "consistent"
    """The key's CRC-32, as in librdkafka's producers."""
    ROUND_ROBIN = "round-robin"
    """The number of the line: one key is spread over all partitions."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to send."""

    key: bytes | None
    value: bytes | None
    """None is a tombstone."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    """If None, the key chooses the partition, as in Kafka's Java producer."""
    topic: str | None = None
    """One of the sender's other topics; None: its first one."""
    timestamp_ms: int | None = None


def plain_record(line: bytes) -> Outgoing:
    r"""The line without its `\n`, byte for byte, as the value of a record without a key."""
    return Outgoing(key=None, value=line.removesuffix(b"\n"))


def json_record(line: bytes) -> Outgoing:
    """The record that a JSON object describes.

    Its members: `key` is a text or null. `value` is a text, null for a tombstone, or any other JSON value, which is
    sent as it is written. `key_base64` and `value_base64` are for bytes. `headers` is an object, or a list of pairs, of
    names and texts or null. `partition` is a number from 0. `timestamp` is a number of milliseconds since 1970, or a
    time in ISO 8601 with a zone. Only a value is required.

    Raises:
        ValueError: the line is not such an object. The message names the member and shows no value.
    """
    try:
        members: dict[str, tuple[Any, str]] = {}
        for name, member in _members(line.decode()):
            if name in members:
                raise ValueError(f"has the member {name!r} twice")
            members[name] = member
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except json.JSONDecodeError as error:  # A kind of ValueError
        raise ValueError(f"is not one JSON object ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    strangers = sorted(set(members) - set(_MEMBERS))
    if strangers:
        raise ValueError(f"has the member {strangers[0]!r}; a record has {', '.join(_MEMBERS)}")
    if "value" not in members and "value_base64" not in members:
        raise ValueError("has no value; write null for a tombstone")
    headers, partition, timestamp = (members.get(name, (None, ""))[0] for name in ("headers", "partition", "timestamp"))
    return Outgoing(
        key=_bytes(members, "key"),
        value=_bytes(members, "value"),
        headers=() if headers is None else _headers(headers),
        partition=None if partition is None else _partition(partition),
        timestamp_ms=None if timestamp is None else _timestamp(timestamp),
    )


def _no_constant(name: str) -> Any:
    raise ValueError(f"has {name}, which is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def _members(text: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Each member of an object: its name, its value and the value as it is written."""
    at = _expect(text, 0, "{")
    while True:
        name, at = _decoder.raw_decode(text, at)
        if not isinstance(name, str):
            raise json.JSONDecodeError("Expecting a name in quotes", text, at)
        start = _expect(text, at, ":")
        value, at = _decoder.raw_decode(text, start)
        yield name, (value, text[start:at])
        if (comma := _COMMA.match(text, at)) is None:
            break
        at = comma.end()
    at = _expect(text, at, "}")
    if at < len(text):
        raise json.JSONDecodeError("Extra data", text, at)


def _expect(text: str, at: int, mark: str) -> int:
    """Where the text goes on after a mark and the space around it."""
    match = re.compile(rf"[ \t\r\n]*{re.escape(mark)}[ \t\r\n]*").match(text, at)
    if match is None:
        raise json.JSONDecodeError(f"Expecting {mark!r}", text, at)
    return match.end()


def _bytes(members: Mapping[str, tuple[Any, str]], name: str) -> bytes | None:
    encoded = f"{name}_base64"
    if name in members and encoded in members:
        raise ValueError(f"has both {name} and {encoded}")
    value, written = members.get(name) or members.get(encoded) or (None, "")
    if value is None:
        return None
    if encoded in members:
        try:
            return base64.b64decode(value, validate=True)
        except (TypeError, ValueError):  # binascii's error is a ValueError.
            raise ValueError(f"has a {encoded} that is not base64") from None
    if isinstance(value, str):
        return _utf8(value, name)
    if name == "key":
        raise ValueError("has a key that is neither a text nor null; write it in quotes")
    return written.encode()


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"has half a surrogate pair in {name}, which UTF-8 cannot hold") from None


def _headers(content: Any) -> tuple[tuple[str, bytes | None], ...]:
    pairs = list(content.items()) if isinstance(content, dict) else content
    headers: list[tuple[str, bytes | None]] = []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        match pair:
            case [str(name), str() | None as value]:
                encoded = None if value is None else _utf8(value, "headers")
                headers.append((_utf8(name, "headers").decode(), encoded))
            case _:
                raise ValueError("has headers that are neither an object nor a list of pairs of texts")
    return tuple(headers)


def _partition(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError("has a partition that is not a number from 0")
    return number


def _timestamp(timestamp: Any) -> int:
    if isinstance(timestamp, str):
        try:
            moment = datetime.fromisoformat(timestamp)
        except ValueError:
            raise ValueError("has a timestamp that is not ISO 8601, such as 2026-03-01T12:00:00Z") from None
        if moment.tzinfo is None:
            raise ValueError("has a timestamp without a zone; end it with Z for UTC")
        timestamp = (moment - _UNIX_EPOCH) // timedelta(milliseconds=1)
    # The client takes a zero as no timestamp.
    if not isinstance(timestamp, int) or isinstance(timestamp, bool) or not 0 < timestamp < 2**63:
        raise ValueError("has a timestamp that is neither ISO 8601 nor a positive number of milliseconds since 1970")
    return timestamp
