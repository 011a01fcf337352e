"""PostgreSQL's binary form of types that Arrow carries as texts, as the ``…_recv`` functions read it: for COPY."""

import ipaddress
import socket
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.textual import PLAIN_ADDRESS
from epochline.arrow.cast.types import byte_layout
from epochline.declare.columns import ColumnType

_HEXADECIMAL = {"uuid": 16, "macaddr": 6}
"""Bytes of a value whose text is their digits, between punctuation."""


def has_wire_form(kind: ColumnType) -> bool:
    """Whether `wire_form` takes a type."""
    if kind.name == "numeric":
        return kind.precision is None or kind.is_wide
    return kind.name in ("inet", "cidr") or kind.name in _HEXADECIMAL


def wire_form(array: pa.Array, kind: ColumnType) -> pa.Array:
    """Cast values as PostgreSQL receives them, of the type ``binary``. NULL stays NULL."""
    if kind.name in _HEXADECIMAL:
        valid = bytes(byte_layout(array.drop_null()).data).translate(None, b"-{}:.")
        return _with_nulls(array, _equally_long(bytes.fromhex(valid.decode()), _HEXADECIMAL[kind.name]))
    if kind.name == "numeric":
        return _with_nulls(array, _numerics(array.drop_null().cast(pa.string())))
    texts = array.dictionary_encode()
    return _addresses(texts.dictionary, is_network=kind.name == "cidr").take(texts.indices)


def _with_nulls(array: pa.Array, values: pa.Array) -> pa.Array:
    """The values at the valid rows of an array."""
    if array.null_count == 0:
        return values
    valid = array.is_valid()
    numbers = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return values.take(pc.if_else(valid, numbers, None))


def _equally_long(data: bytes, length: int) -> pa.Array:
    ends = np.arange(0, len(data) + 1, length, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)])


_IPV4, _IPV6 = 2, 3
"""PostgreSQL's own numbers of the families (``PGSQL_AF_INET``), the same on every system."""


def _addresses(texts: pa.Array, *, is_network: bool) -> pa.Array:
    """Addresses with family, prefix length and size: all plain ones at once, the others one by one."""
    plain = pc.match_substring_regex(texts, PLAIN_ADDRESS)
    others = [_address(text, is_network=is_network) for text in texts.filter(pc.invert(plain)).to_pylist()]
    octets = pc.split_pattern(texts.filter(plain), ".").flatten().cast(pa.uint8())
    rows = np.empty((len(octets) // 4, 8), np.uint8)
    rows[:, :4] = _IPV4, 32, is_network, 4
    rows[:, 4:] = np.asarray(octets).reshape(-1, 4)
    at_once = _equally_long(rows.tobytes(), 8)
    if not others:
        return at_once
    is_plain = np.asarray(plain)
    places = np.where(is_plain, np.cumsum(is_plain), len(at_once) + np.cumsum(~is_plain)) - 1
    return pa.concat_arrays([at_once, pa.array(others, pa.binary())]).take(pa.array(places))


def _address(text: Any, *, is_network: bool) -> bytes:
    address, _, bits = text.partition("/")
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError:  # a system whose function takes fewer texts
        packed = ipaddress.ip_address(address).packed
    family = _IPV4 if len(packed) == 4 else _IPV6
    return bytes((family, int(bits or len(packed) * 8), is_network, len(packed))) + packed


_PLAIN_NUMBER = r"^-?[0-9]{1,40}(\.[0-9]{1,40})?$"
_NEGATIVE = 0x4000
_NO_NUMBERS = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}
"""What stands in place of the sign (``NUMERIC_NEG``, ``NUMERIC_NAN``, …)."""


def _numerics(texts: pa.Array) -> pa.Array:
    """Numbers as digits to the base 10000: all plain ones at once, the others one by one."""
    plain = pc.match_substring_regex(texts, _PLAIN_NUMBER)
    others: list[Any] = texts.filter(pc.invert(plain)).to_pylist()
    if not others:
        return _plain_numbers(texts)
    at_once = _plain_numbers(pc.if_else(plain, texts, "0"))
    return pc.replace_with_mask(
        at_once, pc.invert(plain), pa.array(map(_numeric, others), pa.binary(), size=len(others))
    )


def _plain_numbers(texts: pa.Array) -> pa.Array:
    """Every number gets as many digits as the longest needs; PostgreSQL drops zeros at both ends."""
    if not len(texts):
        return pa.array([], pa.binary())
    starts, lengths, data = byte_layout(texts)
    codes = np.frombuffer(data, np.uint8)
    negative = codes[starts] == ord("-")
    points = np.flatnonzero(codes == ord("."))
    ends = starts + lengths
    ends[np.searchsorted(starts, points, side="right") - 1] = points
    whole = ends - starts - negative
    fraction = np.maximum(lengths - negative - whole - 1, 0)
    before, after = -(-int(whole.max()) // 4), -(-int(fraction.max()) // 4)

    # Each digit's place in a table of equally wide rows, in which the points stand one below the other.
    counts = whole + fraction
    firsts = np.cumsum(counts) - counts
    width = 4 * (before + after)
    row_starts = np.arange(len(texts)) * width + 4 * before - whole
    table = np.zeros(len(texts) * width, np.int16)
    table[np.repeat(row_starts - firsts, counts) + np.arange(int(counts.sum()))] = codes[codes >= ord("0")] - ord("0")

    numbers = np.empty((len(texts), 4 + before + after), ">i2")
    numbers[:, 0], numbers[:, 1] = before + after, before - 1
    numbers[:, 2], numbers[:, 3] = negative * _NEGATIVE, fraction
    numbers[:, 4:] = table.reshape(len(texts), before + after, 4) @ np.array([1000, 100, 10, 1], np.int16)
    return _equally_long(numbers.tobytes(), numbers.shape[1] * 2)


def _numeric(text: str) -> bytes:
    if text in _NO_NUMBERS:
        return struct.pack(">HhHh", 0, 0, _NO_NUMBERS[text], 0)
    value = Decimal(text)
    whole, _, fraction = format(value.copy_abs(), "f").partition(".")
    whole = whole.lstrip("0")
    before, after = -(-len(whole) // 4), -(-len(fraction) // 4)
    padded = whole.rjust(4 * before, "0") + fraction.ljust(4 * after, "0")
    groups = [int(padded[at : at + 4]) for at in range(0, len(padded), 4)]
    sign = _NEGATIVE if value.is_signed() else 0
    return struct.pack(f">HhHh{len(groups)}h", len(groups), before - 1, sign, len(fraction), *groups)
