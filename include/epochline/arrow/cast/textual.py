"""Cast to text, and to types that PostgreSQL reads from text. Each value is checked as COPY would check it."""

import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.jsontext import check_json, doubtful_documents
from epochline.arrow.cast.reasons import DoesNotFitError, require
from epochline.arrow.cast.types import byte_layout
from epochline.declare.columns import ColumnType


def to_text(array: pa.Array, kind: ColumnType) -> pa.Array:
    """To valid UTF-8 without NUL bytes, which PostgreSQL's texts cannot hold, and not longer than the type allows."""
    if pa.types.is_nested(array.type) or pa.types.is_time(array.type):
        raise pa.ArrowTypeError("no text")
    if pa.types.is_string(array.type):
        array = array.cast(pa.binary())  # so that the cast back looks at every byte
    try:
        texts = array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DoesNotFitError("not valid UTF-8") from error
    # Looked for in all rows' bytes at once, which takes an eighth of the time of Arrow's search row by row.
    if b"\0" in bytes(byte_layout(texts).data):
        require(pc.invert(pc.match_substring(texts, "\0")), "holds a NUL byte")
    if kind.length is not None:
        require(pc.less_equal(pc.utf8_length(texts), kind.length), f"longer than {kind.length}")
    return texts


def converter(kind: ColumnType) -> Callable[[pa.Array, ColumnType], pa.Array]:
    """The cast for text, and for every type that travels as text."""
    if kind.labels:
        return _to_label
    pattern = _PATTERNS.get(kind.name)
    if pattern is not None:
        return lambda array, kind: _matching(to_text(_stringlike(array), kind), pattern, kind)
    if kind.name in ("json", "jsonb"):
        return lambda array, kind: _document(to_text(_stringlike(array), kind), binary=kind.name == "jsonb")
    if kind.name in ("inet", "cidr"):
        check = _check_inet if kind.name == "inet" else _check_cidr
        return lambda array, kind: _addresses(to_text(_stringlike(array), kind), check)
    if kind.name == "interval":
        return lambda array, kind: _keeping(_checked(to_text(_stringlike(array), kind), _check_interval), kind)
    return to_text


def _keeping(texts: pa.Array, kind: ColumnType) -> pa.Array:
    """Refuse more digits of a second than the type keeps: PostgreSQL would round them."""
    if kind.digits is not None:
        rounded = pc.match_substring_regex(texts, rf"\.[0-9]{{{kind.digits}}}[0-9]*[1-9]")
        require(pc.invert(rounded), f"more than {kind.digits} digits of a second")
    return texts


def _to_label(array: pa.Array, kind: ColumnType) -> pa.Array:
    texts = to_text(_stringlike(array), kind)
    are_labels = pc.is_in(texts, value_set=pa.array(kind.labels, pa.string()))
    require(pc.or_(are_labels, texts.is_null()), "not a label of the enum")
    return texts


def _stringlike(array: pa.Array) -> pa.Array:
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        raise pa.ArrowTypeError("no text")
    return array


_FOUR_HEX = "[0-9a-fA-F]{4}"
_UUID = f"({_FOUR_HEX}-?){{7}}{_FOUR_HEX}"
_HEX = "[0-9a-fA-F]{2}"
_PATTERNS = {
    "uuid": rf"^({_UUID}|\{{{_UUID}\}})$",
    "macaddr": (
        rf"^(({_HEX}:){{5}}{_HEX}|({_HEX}-){{5}}{_HEX}|({_FOUR_HEX}\.){{2}}{_FOUR_HEX}"
        rf"|({_FOUR_HEX}-){{2}}{_FOUR_HEX}|({_HEX}){{3}}[:-]?({_HEX}){{3}})$"
    ),
}


def _matching(texts: pa.Array, pattern: str, kind: ColumnType) -> pa.Array:
    require(pc.match_substring_regex(texts, pattern), f"not a {kind}")
    return texts


def _document(texts: pa.Array, *, binary: bool) -> pa.Array:
    _checked(doubtful_documents(texts, binary=binary), partial(check_json, binary=binary))
    return texts


def _checked(texts: pa.Array, check: Callable[[str], None]) -> pa.Array:
    for text in pc.drop_null(pc.unique(texts)).to_pylist():
        try:
            check(text)
        except DoesNotFitError:
            raise
        except (ValueError, RecursionError) as error:
            # Python's message would show the value.
            raise DoesNotFitError("cannot be read") from error
    return texts


_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
PLAIN_ADDRESS = rf"^({_OCTET}\.){{3}}{_OCTET}$"
"""An address of four numbers without a prefix length, which is also a network: of one address."""


def _addresses(texts: pa.Array, check: Callable[[str], None]) -> pa.Array:
    different = pc.unique(texts)
    _checked(different.filter(pc.invert(pc.match_substring_regex(different, PLAIN_ADDRESS))), check)
    return texts


_PREFIX_LENGTH = re.compile(r"[^/]*(/(0|[1-9][0-9]{0,2}))?")


def _check_inet(text: str) -> None:
    """An address with an optional prefix length. PostgreSQL refuses zones and dotted masks."""
    if "%" in text or not _PREFIX_LENGTH.fullmatch(text):
        raise DoesNotFitError("not an address")
    address, _, bits = text.partition("/")
    family, most = (socket.AF_INET6, 128) if ":" in address else (socket.AF_INET, 32)
    with contextlib.suppress(OSError):  # a tenth of the time of `ipaddress`, which decides what this refuses
        socket.inet_pton(family, address)
        if int(bits or 0) <= most:
            return
    try:
        ipaddress.ip_interface(text)
    except ValueError as error:
        raise DoesNotFitError("not an address") from error


def _check_cidr(text: str) -> None:
    """A network: an address whose bits after the prefix length are 0."""
    _check_inet(text)
    try:
        ipaddress.ip_network(text, strict=True)
    except ValueError as error:
        raise DoesNotFitError("bits to the right of the mask") from error


_UNITS = {"year": 0, "years": 0, "mon": 1, "mons": 1, "month": 1, "months": 1, "week": 2, "weeks": 2,
          "day": 3, "days": 3, "hour": 4, "hours": 4, "minute": 5, "minutes": 5, "min": 5, "mins": 5,
          "second": 6, "seconds": 6, "sec": 6, "secs": 6}  # fmt: skip
_NUMBER = r"[+-]?[0-9]{1,15}"
_SECONDS = rf"{_NUMBER}(?:\.[0-9]{{1,6}})?"
_ISO_INTERVAL = re.compile(
    rf"P(?=.)(?:({_NUMBER})Y)?(?:({_NUMBER})M)?(?:({_NUMBER})W)?(?:({_NUMBER})D)?"
    rf"(?:T(?=.)(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_SECONDS})S)?)?"
)
_WORDS = re.compile(rf"(?:({_SECONDS}) ([a-z]+))(?: |$)")
_CLOCK = re.compile(r"[+-]?([0-9]{1,10}):([0-5]?[0-9])(?::([0-5]?[0-9](?:\.[0-9]{1,6})?))?")


def _check_interval(text: str) -> None:
    """An interval in ISO 8601, or as PostgreSQL writes it: ``1 year 2 mons -3 days 04:05:06.789``, ``infinity``."""
    if text in ("infinity", "-infinity"):
        return
    amounts = [Decimal(0)] * 7
    iso = _ISO_INTERVAL.fullmatch(text)
    if iso is not None:
        amounts = [Decimal(amount or 0) for amount in iso.groups()]
    else:
        _read_words(text, amounts)
    months = amounts[0] * 12 + amounts[1]
    days = amounts[2] * 7 + amounts[3]
    seconds = amounts[4] * 3600 + amounts[5] * 60 + amounts[6]
    if max(abs(months), abs(days)) >= 2**31 or abs(seconds) * 1_000_000 >= 2**63:
        raise DoesNotFitError("out of range")


def _read_words(text: str, amounts: list[Decimal]) -> None:
    at = 0
    seen: set[int] = set()
    while match := _WORDS.match(text, at):
        unit = _UNITS.get(match[2])
        if unit is None or unit in seen or ("." in match[1] and unit != 6):
            raise DoesNotFitError("not an interval")
        seen.add(unit)
        amounts[unit] = Decimal(match[1])
        at = match.end()
    rest = text[at:]
    clock = _CLOCK.fullmatch(rest) if not seen & {4, 5, 6} else None
    if clock is not None:
        amounts[4], amounts[5], amounts[6] = Decimal(clock[1]), Decimal(clock[2]), Decimal(clock[3] or 0)
    elif rest or not seen or text.endswith(" "):
        raise DoesNotFitError("not an interval")
