"""The records of the kinds that `bench.kind_list` lists, each made from its number."""

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO

import fastavro

from bench.records import COLUMNS, record

FEW, SOME, CUSTOMERS = 10_000, 100_000, 1_000
"""Keys of the upsert on few keys, of the upsert with deletes, and of the windows."""

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


PATTERN = r'(?P<ip>\S+) - (?P<who>\S+) \[(?P<at>[^\]]+)\] "GET (?P<path>\S+) HTTP/1\.1" (?P<status>\d+) (?P<bytes>\d+)'


def document(number: int) -> str:
    """A nested document of four members."""
    town = {"town": f"town {number % 500}", "zip": number % 90_000}
    return f'"doc": {json.dumps({"plan": "gold", "tags": ["a", "b"], "size": number % 100, "address": town})}'


def md5(number: int) -> str:
    """The digest of a number's digits."""
    return hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()


def digest(number: int) -> str:
    """32 bytes in base64."""
    return f'"data": "{base64.b64encode(hashlib.sha256(b"%d" % number).digest()).decode()}"'


def address(number: int) -> str:
    """A UUID and an address."""
    return f'"ref": "{md5(number)}", "ip": "10.{number // 65_536 % 256}.{number // 256 % 256}.{number % 256}"'


def line(number: int) -> bytes:
    """A line of an access log."""
    of = record(number)
    asked = f'[{of["at"]}] "GET /items/{number} HTTP/1.1" {404 if of["ok"] else 200} {number % 100_000}'
    return f"10.0.0.{number % 256} - {of['who']} {asked}".encode()


SCHEMA = {
    "type": "record", "name": "sale",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "who", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}, {"name": "ok", "type": "boolean"},
    ],
}  # fmt: skip
_PARSED = fastavro.parse_schema(SCHEMA)


def avro(number: int) -> bytes:
    """The body of a record in Avro."""
    of, body = record(number), BytesIO()
    typed = {"amount": Decimal(number % 100_000).scaleb(-2), "at": datetime.fromisoformat(of["at"])}
    fastavro.schemaless_writer(body, _PARSED, of | typed)
    return body.getvalue()


def keyed(number: int, keys: int) -> bytes:
    """A record with one of so many keys, whose records are in one partition."""
    return json.dumps(record(number) | {"id": number % keys}).encode()


def deleting(number: int) -> bytes | None:
    """A fifth of the records delete their keys, which are others each time."""
    return None if (number // SOME + number) % 5 == 0 else keyed(number, SOME)


def visit(number: int) -> bytes:
    """A record every 10 ms of event time."""
    at = (BEGIN + timedelta(milliseconds=10 * number)).isoformat()
    return f'{{"id": {number}, "who": "customer-{number % CUSTOMERS:06}", "at": "{at}"}}'.encode()


def wide(number: int) -> bytes:
    """A record with 200 members."""
    of = record(number)
    return json.dumps({f"{name}_{at}": of[name] for at in range(40) for name in COLUMNS}).encode()
