"""Write columns as texts: as PostgreSQL shows them in UTC (booleans as ``true`` and ``false``), and as JSON objects."""

import base64
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import outside_years, spelled_out
from epochline.arrow.cast.jsontext import read_json, write_json_as_utf8
from epochline.arrow.cast.reasons import any_true
from epochline.declare.columns import INTEGERS, ColumnType

_FIXED_DIGITS = {"real": 6, "double precision": 15}
"""The number of digits before the point from which on PostgreSQL writes an exponent."""


def as_text(column: pa.Array, kind: ColumnType) -> pa.Array:
    """A cast column, but not ``bytea``, as text; ``json``, ``jsonb`` and ``interval`` stay as they were written."""
    if kind.name == "numeric":
        return numeric_text(column)
    if kind.name in _FIXED_DIGITS:
        return _each(column.cast(pa.string()), lambda text: _floating(text, _FIXED_DIGITS[kind.name]))
    if kind.name == "date":
        return spelled_out(column).cast(pa.string())
    if kind.name.startswith("timestamp"):
        return _no_trailing_zeros(pc.replace_substring(spelled_out(column).cast(pa.string()), "Z", "+00"))
    if kind.name == "time without time zone":
        return _no_trailing_zeros(spelled_out(column).cast(pa.string()))
    if kind.name in _CANONICAL:
        return _each(column, _CANONICAL[kind.name])
    return column.cast(pa.string())


def numeric_text(column: pa.Array) -> pa.Array:
    """A ``numeric`` column as texts without an exponent, which are valid JSON numbers too."""
    texts = column.cast(pa.string())
    plain = pc.match_substring_regex(texts, r"^(0|-?[1-9][0-9]*|-?[1-9][0-9]*\.[0-9]+|0\.[0-9]+)$")
    return texts if pc.all(plain, min_count=0).as_py() else _each(texts, _digits)


def _each(column: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], pa.string())


def _digits(text: str) -> str:
    value = Decimal(text)
    # PostgreSQL's numeric has no negative zero and no exponent: it shows 1e2 as 100.
    return format(abs(value) if value.is_zero() else value, "f")


def _floating(text: str, fixed_digits: int) -> str:
    if not re.search("[0-9]", text):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[text.lower()]
    value = Decimal(text)
    sign, digits, _ = value.as_tuple()
    if value.is_zero():
        return "-0" if sign else "0"
    power = value.adjusted()
    shortest = "".join(map(str, digits)).rstrip("0")
    if -4 <= power < fixed_digits:
        fixed = format(value, "f")
        return fixed.rstrip("0").removesuffix(".") if "." in fixed else fixed
    mantissa = shortest[0] + (f".{shortest[1:]}" if len(shortest) > 1 else "")
    return f"{'-' if sign else ''}{mantissa}e{power:+03d}"


def _no_trailing_zeros(texts: pa.Array) -> pa.Array:
    trimmed = pc.replace_substring_regex(texts, r"\.000000", "")
    return pc.replace_substring_regex(trimmed, r"(\.[0-9]*[1-9])0+(\D|$)", r"\1\2")


def _uuid(text: str) -> str:
    digits = re.sub("[^0-9a-f]", "", text.lower())
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _macaddr(text: str) -> str:
    digits = re.sub("[^0-9a-f]", "", text.lower())
    return ":".join(digits[at : at + 2] for at in range(0, 12, 2))


def _inet(text: str) -> str:
    address = ipaddress.ip_interface(text)
    length = address.network.prefixlen
    return _address(address.ip) + ("" if length == address.max_prefixlen else f"/{length}")


def _cidr(text: str) -> str:
    network = ipaddress.ip_network(text)
    return f"{_address(network.network_address)}/{network.prefixlen}"


def _address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    value = int(address)
    # PostgreSQL writes an embedded IPv4 address with dots. Python does so since 3.13, and not for all addresses.
    embedded = isinstance(address, ipaddress.IPv6Address) and (1 << 16 <= value < 1 << 32 or value >> 32 == 0xFFFF)
    if embedded:
        return f"::{'ffff:' if value >> 32 else ''}{ipaddress.IPv4Address(value & 0xFFFFFFFF)}"
    return str(address)


_CANONICAL: dict[str, Callable[[str], str]] = {"uuid": _uuid, "macaddr": _macaddr, "inet": _inet, "cidr": _cidr}


_NEEDS_ESCAPE = r'["\\\x00-\x1f]'

_quoted = json.JSONEncoder(ensure_ascii=False).encode


class JsonWriter:
    """Writes columns as JSON objects with members in the declared order; NULL is ``null``.

    Numbers are exact, ``json`` and ``jsonb`` are embedded, timestamps are ISO 8601 (with a ``Z`` if the type has a
    zone), ``bytea`` is base64, and everything else is PostgreSQL's text. `epochline.declare.parsers.Json` reads the
    objects back, except half a surrogate pair, which a ``json`` may contain as an escape.
    """

    def __init__(self, columns: Mapping[str, ColumnType]) -> None:
        self._columns = dict(columns)

    def write(self, rows: pa.RecordBatch) -> tuple[pa.Array, dict[int, str]]:
        """One object per row of cast columns, and the reason for each row that JSON cannot express."""
        problems: dict[int, str] = {}
        pieces: list[Any] = []
        for at, (name, kind) in enumerate(self._columns.items()):
            column = rows.column(name)
            impossible, reason = _impossible(column, kind)
            for row in impossible:
                problems.setdefault(row, f"{name}: {reason}")
            pieces += [f"{',' if at else '{'}{_quoted(name)}:", pc.fill_null(_member(column, kind), "null")]
        return pc.binary_join_element_wise(*pieces, "}", ""), problems


def _impossible(column: pa.Array, kind: ColumnType) -> tuple[list[int], str]:
    bad: pa.Array | None = None
    if pa.types.is_floating(column.type):
        bad = pc.invert(pc.is_finite(column))
    elif kind.name == "numeric" and pa.types.is_string(column.type):
        bad = pc.match_substring_regex(column, "[NI]")
    if bad is not None:
        return pc.indices_nonzero(pc.fill_null(bad, False)).to_pylist(), "JSON has no NaN and no Infinity"
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return outside_years(column), "ISO 8601 has only the years 1 to 9999"
    return [], ""


def _member(column: pa.Array, kind: ColumnType) -> pa.Array:
    if kind.name == "boolean" or kind.name in INTEGERS or pa.types.is_floating(column.type):
        return column.cast(pa.string())
    if kind.name == "numeric":
        return numeric_text(column)
    if kind.name in ("json", "jsonb") or kind.element is not None:
        return _each(column, lambda text: write_json_as_utf8(read_json(text)))
    if kind.name == "bytea":
        return _each(column, lambda value: f'"{base64.b64encode(value).decode()}"')
    if not kind.by_text and (kind.name == "date" or kind.name.startswith(("timestamp", "time "))):
        texts = pc.replace_substring(spelled_out(column).cast(pa.string()), " ", "T")
        return pc.binary_join_element_wise('"', texts, '"', "")
    return _texts(as_text(column, kind))


def _texts(texts: pa.Array) -> pa.Array:
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    special = pc.fill_null(pc.match_substring_regex(texts, _NEEDS_ESCAPE), False)
    if not any_true(special):
        return quoted
    return pc.replace_with_mask(quoted, special, _each(texts.filter(special), _quoted))
