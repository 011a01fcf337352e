"""Read and write JSON texts without losing a digit, and check that PostgreSQL accepts them."""

import json
import re
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.numbers import numeric_holds
from epochline.arrow.cast.reasons import DoesNotFitError, require_utf8
from epochline.arrow.cast.types import ByteLayout, byte_layout

MAX_DEPTH = 256
"""Deeper documents are refused: Python's and PostgreSQL's parsers have different limits."""

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])')


class Numeral(str):
    """A number as a JSON document writes it."""

    __slots__ = ()


def _no_constant(name: str) -> Any:
    raise DoesNotFitError(f"{name} is not JSON")


_reader = json.JSONDecoder(parse_int=Numeral, parse_float=Numeral, parse_constant=_no_constant)
_reader_of_pairs = json.JSONDecoder(
    parse_int=Numeral, parse_float=Numeral, parse_constant=_no_constant, object_pairs_hook=tuple
)


def read_json(text: str, *, pairs: bool = False) -> Any:
    """Read a JSON document; numbers keep their digits (`Numeral`). Raises `DoesNotFitError` for other texts.

    With ``pairs`` an object is a tuple of names and values, in which a repeated name keeps each value.
    """
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise DoesNotFitError(f"nested deeper than {MAX_DEPTH}")
    try:
        return (_reader_of_pairs if pairs else _reader).decode(text)
    except json.JSONDecodeError as error:
        raise DoesNotFitError(f"not JSON: {error.msg} at character {error.pos}") from error


def _depth(text: str) -> int:
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        depth += (match[1] is not None) - (match[2] is not None)
        deepest = max(deepest, depth)
    return deepest


def write_json(value: Any) -> str:
    """Write a document of `read_json` without spaces; numbers keep their digits."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts)


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, Numeral):
        parts.append(str(value))
    elif isinstance(value, dict):
        parts.append("{")
        for at, (name, member) in enumerate(value.items()):
            parts.append(f"{',' if at else ''}{_quoted(name)}:")
            _write(member, parts)
        parts.append("}")
    elif isinstance(value, list):
        parts.append("[")
        for at, element in enumerate(value):
            if at:
                parts.append(",")
            _write(element, parts)
        parts.append("]")
    elif isinstance(value, str):
        parts.append(_quoted(value))
    else:
        parts.append("null" if value is None else "true" if value else "false")


_encode_text = json.JSONEncoder(ensure_ascii=False).encode


def _quoted(text: str) -> str:
    return _encode_text(str(text))


_HALF_PAIR = re.compile("[\ud800-\udfff]")


def write_json_as_utf8(value: Any) -> str:
    """`write_json` as a text that UTF-8 can encode: half a surrogate pair stays an escape, which is valid JSON."""
    return _HALF_PAIR.sub(lambda half: f"\\u{ord(half[0]):04x}", write_json(value))


def check_json(text: str, *, binary: bool) -> None:
    """Raise `DoesNotFitError` unless PostgreSQL accepts a text as ``json``, or with ``binary`` as ``jsonb``."""
    document = read_json(text, pairs=binary)
    if binary:
        _check_value(document)


_LONGEST = 15_000
_DOUBTFUL = r"\\u0000|[0-9.][eE][+-]?0*[1-9][0-9]{3}"
"""A text without these that is not longer has no value that only ``jsonb`` refuses."""
_syntax = msgspec.json.Decoder(msgspec.Raw)


def may_be_too_deep(layout: ByteLayout) -> Any:
    """Which texts have more than `MAX_DEPTH` opening brackets and braces: numpy's array of booleans."""
    starts, lengths, data = layout
    if lengths.max(initial=0) <= MAX_DEPTH:
        return np.zeros(len(lengths), bool)
    codes = np.frombuffer(data, np.uint8)
    opening = np.flatnonzero((codes == ord("[")) | (codes == ord("{")))
    return np.searchsorted(opening, starts + lengths) - np.searchsorted(opening, starts) > MAX_DEPTH


def doubtful_documents(texts: pa.Array, *, binary: bool) -> pa.Array:
    """The texts that `check_json` must see: it certainly takes all others, because msgspec's parser takes them."""
    lengths = pc.binary_length(texts)
    doubtful = pc.or_(pc.greater(lengths, _LONGEST), pa.array(may_be_too_deep(byte_layout(texts))))
    if binary:
        doubtful = pc.or_(doubtful, pc.match_substring_regex(texts, _DOUBTFUL))
    rows = zip(texts.cast(pa.binary()).to_pylist(), doubtful.to_pylist(), strict=True)
    seen = [text is not None and (is_doubtful or not _is_json(text)) for text, is_doubtful in rows]
    return texts.filter(pa.array(seen, pa.bool_()))


def _is_json(text: bytes) -> bool:
    try:
        _syntax.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _check_value(value: Any) -> None:
    if isinstance(value, Numeral):
        if not numeric_holds(value):
            raise DoesNotFitError("a number out of range")
    elif isinstance(value, str):
        if "\0" in value:
            raise DoesNotFitError("\\u0000 in a text")
        require_utf8(value)
    elif isinstance(value, list | tuple):
        for element in value:
            _check_value(element)
