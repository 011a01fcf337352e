"""The named statements of the ``.sql`` files in this folder. It imports no driver, so that every process can use it."""

from functools import cache
from pathlib import Path


@cache
def statements() -> dict[str, str]:
    """All statements by name, without their comments. Placeholders are psycopg2's: ``%(name)s``; a ``%`` is doubled."""
    texts: dict[str, str] = {}
    for file in Path(__file__).parent.glob("*.sql"):
        for piece in file.read_text().split("\n-- name: ")[1:]:
            name, _, body = piece.partition("\n")
            while body.startswith("--"):
                body = body.partition("\n")[2]
            texts[name] = body.strip()
    return texts


def statement(name: str) -> str:
    """The text of a statement.

    Raises:
        KeyError: no file has a statement of this name.
    """
    return statements()[name]
