"""The checks of docs/guarantee.md, as a reader of the page runs them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "guarantee.md").read_text()
CHECKS = re.findall(r"^(Check.*?):\n\n```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def broken(query: Callable[[str], list[Any]], pipeline: str, table: str) -> dict[str, list[Any]]:
    """What the checks find, by what they look for; nothing where every invariant holds."""
    found = {}
    for said, statement in CHECKS:
        statement = statement.replace("FROM access_log t", f"FROM {table} t").replace("'access_log'", f"'{pipeline}'")
        if rows := query(statement):
            found[said] = rows
    return found
