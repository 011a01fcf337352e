"""The named statements of ``ledger.sql``."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from sqlalchemy import Connection, CursorResult, TextClause, text

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def _statements() -> dict[str, TextClause]:
    source = files("epochline.postgres.queries").joinpath("ledger.sql").read_text()
    _, *pieces = _NAME.split(source)
    return {name: text(body.strip()) for name, body in zip(pieces[::2], pieces[1::2], strict=True)}


def run(connection: Connection, name: str, **values: Any) -> CursorResult[Any]:
    """Run a named statement with bound values."""
    return connection.execute(_statements()[name], values)
