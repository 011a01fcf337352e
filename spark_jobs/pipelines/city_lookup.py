"""Adds to each id the name of its city, looked up in PostgreSQL, nine ids at a time (E9).

The database and its login are not part of the declaration. Executors find the service ``city_lookup`` in the file that
PGSERVICEFILE names, or in ``~/.pg_service.conf``; only their account should be able to read that file.
"""

from __future__ import annotations

import re
from datetime import timedelta

import psycopg2
import pyarrow as pa
from psycopg2.extensions import connection as Connection  # noqa: N812 - a class

from epochline.lookup import Lookup, over_batches

SERVICE = "city_lookup"
_ID = re.compile(rb"[0-9]{1,18}")


def _connect() -> Connection:
    # The server cancels a slow statement, so that no session keeps running an abandoned look-up.
    opened = psycopg2.connect(service=SERVICE, connect_timeout=5, options="-c statement_timeout=2000")
    opened.autocommit = True
    return opened


def _close(opened: Connection) -> None:
    opened.close()


def _city(opened: Connection, city: str) -> str | None:
    with opened.cursor() as cursor:
        cursor.execute("SELECT name FROM city WHERE id = %s", (city,))
        found = cursor.fetchone()
    return None if found is None else str(found[0])


CITIES = Lookup(_city, connect=_connect, close=_close, concurrency=9, timeout=timedelta(seconds=1))
_with_city = over_batches(CITIES, key="id", column="city", kind=pa.string())


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Parse ``id`` and look up ``city``; an id that is not a number, or a look-up of a second, is a bad record."""
    values = [value or b"" for value in batch.column("value").to_pylist()]
    ids = [value.decode() if _ID.fullmatch(value) else None for value in values]
    errors = [None if one else "is not a number of up to 18 digits" for one in ids]
    return _with_city(
        pa.RecordBatch.from_arrays([pa.array(ids, pa.string()), pa.array(errors, pa.string())], names=["id", "_error"])
    )
