"""Makes ``id>>>name`` of each id, with the name of its city from Redis, nine ids at a time.

Executors find Redis by the URL in REDIS_URL, or in the file ``examples/redis.url`` of EPOCHLINE_HOME. Only their
account should be able to read that file: the URL may hold a password.
"""

import os
import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import redis
from redis.asyncio import Redis

from epochline.errors import ConfigurationError
from epochline.lookup import AsyncLookup, over_batches

HASH = "AsyncReadRedis"
_ID = re.compile(rb"[0-9]{1,18}")


def _url() -> str:
    if url := os.environ.get("REDIS_URL"):
        return url
    file = Path(os.environ.get("EPOCHLINE_HOME", os.devnull)) / "examples" / "redis.url"
    if not file.is_file():
        raise ConfigurationError(f"there is no Redis to look cities up in: set REDIS_URL, or write its URL to {file}")
    return file.read_text().strip()


def _connect() -> Redis:
    # The pool of the Flink program holds ten connections. A connection that a time-out interrupts is closed.
    return Redis.from_url(_url(), decode_responses=True, max_connections=10)


async def _line(client: Redis, city: str) -> str | None:
    name = await client.hget(HASH, city)
    return None if name is None else f"{city}>>>{name!s}"


LINES = AsyncLookup(
    _line,
    connect=_connect,
    close=Redis.aclose,
    concurrency=9,
    timeout=timedelta(seconds=1),
    unavailable=(redis.ConnectionError, OSError),
)
_with_line = over_batches(LINES, key="id", column="line", kind=pa.string())


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Parse ``id`` and look up ``line``; an id that is not a number, or a look-up of a second, is a bad record."""
    values = [value or b"" for value in batch.column("value").to_pylist()]
    ids = [value.decode() if _ID.fullmatch(value) else None for value in values]
    errors = [None if number else "is not a number of up to 18 digits" for number in ids]
    return _with_line(
        pa.RecordBatch.from_arrays([pa.array(ids, pa.string()), pa.array(errors, pa.string())], names=["id", "_error"])
    )
