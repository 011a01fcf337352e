"""Records in a schema registry's framing, where a parser of texts meets them: a zero byte, a schema's id, the body."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.casting import Cast, cast_column
from epochline.config.registry import HEADER_BYTES
from epochline.declare.columns import parse_type

_TEXT = parse_type("text")
_WHITE = b" \t\r\n"


def texts_of(name: str, values: pa.Array) -> Cast:
    """The values as texts; the reason of a framed record says what it is and what to declare."""
    texts = cast_column(name, values, _TEXT)
    for row in texts.problems:
        value = values[row].as_py()
        if value[:1] == b"\0" and len(value) > HEADER_BYTES:
            texts.problems[row] = _reason(int.from_bytes(value[1:HEADER_BYTES]), value[HEADER_BYTES:])
    return texts


def _reason(schema_id: int, body: bytes) -> str:
    framing = f"is in a schema registry's framing (a zero byte and the schema id {schema_id} stand before the body)"
    if body.lstrip(_WHITE)[:1] in (b"{", b"["):
        return f"{framing}, and the body looks like JSON; declare parse=Json(columns=…, framed=True)"
    return f"{framing}, and the body is no JSON; declare parse=Avro(columns=…) if it is Avro"


def unframed(values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """The bodies of framed values, and the reason for each value that is not framed. NULL stays NULL."""
    framed = pc.and_(pc.starts_with(values, b"\0"), pc.greater(pc.binary_length(values), HEADER_BYTES))
    plain = pc.indices_nonzero(pc.invert(framed)).to_pylist()
    # Arrow cannot slice a value that is shorter than the header.
    given: list[Any] = values.to_pylist()
    bodies = [
        value[HEADER_BYTES:] if is_framed else None for value, is_framed in zip(given, framed.to_pylist(), strict=True)
    ]
    return pa.array(bodies, pa.binary()), dict.fromkeys(
        plain, "has no schema registry's framing, which framed=True expects"
    )


def body_of(key: bytes | None) -> bytes:
    """A key without its framing if it has one."""
    key = key or b""
    return key[HEADER_BYTES:] if key[:1] == b"\0" else key
