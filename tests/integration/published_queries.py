"""The queries of docs/queries.sql, by name."""

import re
from pathlib import Path


def queries() -> dict[str, str]:
    text = (Path(__file__).parents[2] / "docs" / "queries.sql").read_text()
    _, *pieces = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(pieces[::2], pieces[1::2], strict=True))
