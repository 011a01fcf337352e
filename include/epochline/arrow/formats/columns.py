"""What ready-made parsers share: texts, a registry's framing, a connector's placeholder, cast columns, reasons."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.batches import ERROR
from epochline.arrow.cast.casting import Cast, cast_column
from epochline.arrow.cast.jsontext import MAX_DEPTH, Numeral
from epochline.config.registry import HEADER_BYTES
from epochline.declare.columns import UNAVAILABLE, ColumnType, parse_type

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
    listed: list[Any] = values.to_pylist()
    bodies = [
        value[HEADER_BYTES:] if is_framed else None for value, is_framed in zip(listed, framed.to_pylist(), strict=True)
    ]
    return pa.array(bodies, pa.binary()), dict.fromkeys(
        plain, "has no schema registry's framing, which framed=True expects"
    )


def body_of(key: bytes | None) -> bytes:
    """A key without its framing if it has one."""
    key = key or b""
    return key[HEADER_BYTES:] if key[:1] == b"\0" else key


def cast_batch(
    kinds: Mapping[str, ColumnType],
    columns: Sequence[pa.Array],
    problems: Mapping[int, str],
    left_out: Mapping[int, Sequence[str]] | None = None,
) -> pa.RecordBatch:
    """The columns cast to their types, as `parsed_batch`. A row keeps its first problem."""
    arrays: dict[str, pa.Array] = {}
    for column, (name, kind) in zip(columns, kinds.items(), strict=True):
        cast = cast_column(name, column, kind)
        arrays[name] = cast.array
        problems = {**cast.problems, **problems}
    return parsed_batch(arrays, problems, left_out)


def parsed_batch(
    columns: Mapping[str, pa.Array], problems: Mapping[int, str], left_out: Mapping[int, Sequence[str]] | None = None
) -> pa.RecordBatch:
    """The columns, ``_error``, and ``_unavailable`` if ``left_out`` names columns that a record does not give."""
    arrays = dict(columns)
    rows = len(next(iter(arrays.values())))
    arrays[ERROR] = pa.nulls(rows, pa.string())
    if problems:
        arrays[ERROR] = pa.array([problems.get(row) for row in range(rows)], pa.string())
    if left_out is not None:
        arrays[UNAVAILABLE] = pa.array([left_out.get(row) or None for row in range(rows)], pa.list_(pa.string()))
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


WITHIN = "the value holds the placeholder of a value that its connector did not have, which no column can keep in part"


class Placeholder:
    """Recognizes a connector's placeholder among values of JSON and Avro, in each form that a type takes."""

    def __init__(self, text: str) -> None:
        raw = text.encode()
        # Java's UUID.nameUUIDFromBytes.
        uuid = UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3)
        # As text and JSON, as bytes in three modes, as uuid, as a map that is sent as text.
        self._texts = {text, base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode(), raw.hex()}
        self._texts |= {str(uuid), json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))}
        self._bytes = {raw, uuid.bytes}
        # Java's bytes have a sign.
        self._numbers = [byte - 256 if byte > 127 else byte for byte in raw]
        digits = r"(?:\.0)?\s*,\s*".join(map(str, self._numbers[:2]))
        self._forms = "|".join(map(re.escape, [*self._texts, "\\"])) + "|" + digits

    def may_be_in(self, texts: pa.Array) -> pa.Array:
        """Rows whose text contains it in some form; an escape may stand for any letter."""
        return pc.fill_null(pc.match_substring_regex(texts, self._forms), False)

    def stands_for(self, value: Any) -> bool:
        """Whether a value is the placeholder, alone or as an array or a map of it."""
        if isinstance(value, dict):
            return len(value) == 1 and all(self.stands_for(part) for pair in value.items() for part in pair)
        if isinstance(value, list):
            return bool(value) and (self._are_its_bytes(value) or (len(value) == 1 and self.stands_for(value[0])))
        value = _plain(value)
        if isinstance(value, bytes):
            return value in self._bytes
        return isinstance(value, str) and not isinstance(value, Numeral) and str(value) in self._texts

    def lies_within(self, value: Any, depth: int = MAX_DEPTH) -> bool:
        """Whether a document or an array, at most ``depth`` deep, holds the placeholder and other values beside it."""
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return depth > 0 and any(self.stands_for(member) or self.lies_within(member, depth - 1) for member in inner)

    def _are_its_bytes(self, values: list[Any]) -> bool:
        if len(values) != len(self._numbers):
            return False
        numbers = map(_plain, values)
        return all(
            isinstance(number, int | float | Numeral) and str(number) in (str(byte), f"{byte}.0")
            for number, byte in zip(numbers, self._numbers, strict=True)
        )


def _plain(value: Any) -> Any:
    """The integer or the bytes of a logical value of Avro; anything else as it is."""
    return getattr(value, "value", value)
