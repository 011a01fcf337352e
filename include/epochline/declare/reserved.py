"""Column names that Epochline uses itself, in tables, in staging, or while it makes rows. Pure."""

from __future__ import annotations

from epochline.declare.columns import DELETED, LINEAGE, STAGED_PLACE, UNAVAILABLE
from epochline.declare.names import ORDER

_OF_A_PARSE = {"_error", "_skip", DELETED, UNAVAILABLE, "_tombstone"}
_AT_WORK = {
    "_after", "_at", "_before", "_begins", "_copy", "_counts", "_existed", "_fate", "_former", "_from", "_island",
    "_island_end", "_island_known", "_island_start", "_island_touched", "_kind", "_known", "_number", "_refused",
    "_there", "_to", "_total", "_touched", "_window",
}  # fmt: skip
_RESERVED = {*LINEAGE, *STAGED_PLACE, *_OF_A_PARSE, *_AT_WORK}
_PREFIXES = (ORDER, "_epochline")


def is_reserved(name: str) -> bool:
    """Whether no declared column may have the name. Spark does not distinguish upper and lower case."""
    return name.lower() in _RESERVED or name.lower().startswith(_PREFIXES)
