"""Write columns as PostgreSQL shows them in UTC, but booleans as ``true`` and ``false``."""

import ipaddress
import re
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import spelled_out
from epochline.declare.columns import ColumnType

_FIXED_DIGITS = {"real": 6, "double precision": 15}
"""The number of digits before the point from which on PostgreSQL writes an exponent."""


def as_text(column: pa.Array, kind: ColumnType) -> pa.Array:
    """A column that `cast_column` cast, but not ``bytea``, as text.

    NULL stays NULL; ``json``, ``jsonb`` and ``interval`` stay as they were written.
    """
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


def _each(texts: pa.Array, write: Callable[[str], str]) -> pa.Array:
    return pa.array([None if text is None else write(text) for text in texts.to_pylist()], pa.string())


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
