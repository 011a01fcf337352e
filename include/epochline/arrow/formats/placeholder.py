"""What a connector sends in place of a value that it does not have, in each form that a type takes."""

import base64
import hashlib
import json
import re
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.jsontext import MAX_DEPTH, Numeral

WITHIN = "the value holds the placeholder of a value that its connector did not have, which no column can keep in part"
"""Reason of a record whose document or array holds a placeholder among other values."""


class Placeholder:
    """Recognizes a connector's placeholder among values of `epochline.arrow.cast.jsontext.read_json` and of Avro."""

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
        """Whether a document or an array holds the placeholder, and other values beside it.

        A document that is deeper than ``depth`` is refused for its depth.
        """
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
