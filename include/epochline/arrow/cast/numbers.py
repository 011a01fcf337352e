"""Cast to booleans, integers, floating point and numeric, without rounding or overflow."""

import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.reasons import DoesNotFitError, require
from epochline.arrow.cast.types import arrow_type
from epochline.declare.columns import ColumnType

_NUMERAL = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?0*[0-9]{1,9})?$"
_NO_NUMBER = r"^(NaN|-?Infinity)$"
"""As PostgreSQL writes them. No decimal of Arrow has them, so only ``numeric`` without a precision takes them."""
# The digits that PostgreSQL's numeric has before and after the point.
_DIGITS_BEFORE, _DIGITS_AFTER = 131072, 16383
# A shorter text without an exponent cannot exceed either limit.
_SURELY_SMALL = 1000


def _only(array: pa.Array, *, boolean: bool = False) -> None:
    kind = array.type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (pa.types.is_string(kind) or (pa.types.is_boolean(kind) if boolean else numeric)):
        raise pa.ArrowTypeError(f"{kind} cannot be cast")


def to_boolean(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From booleans, and from texts that Arrow reads as booleans."""
    _only(array, boolean=True)
    return array.cast(pa.bool_())


def to_integer(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From numbers in range without a fraction, and from their texts in decimal digits."""
    _only(array)
    if pa.types.is_string(array.type):
        # Without this check, Arrow would read 0x1f as 31.
        require(pc.match_substring_regex(array, "^-?[0-9]+$"), "not an integer")
    return array.cast(arrow_type(kind))


def to_float(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From numbers and texts, rounded to the nearest float. Overflow and underflow are refused."""
    _only(array)
    target = arrow_type(kind)
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.string())
    if pa.types.is_integer(array.type) and not pa.types.is_int64(array.type):
        array = array.cast(pa.int64())
    cast = array.cast(target)
    if cast.type.equals(array.type):
        return cast
    if pa.types.is_string(array.type):
        meant_infinite = pc.match_substring(array, "inf", ignore_case=True)
        meant_zero = pc.invert(pc.match_substring_regex(array, r"^[+-]?[0.]*[1-9]"))
    else:
        wide = array.cast(pa.float64())
        meant_infinite = pc.is_inf(wide)
        meant_zero = pc.equal(wide, 0.0)
    require(pc.or_(meant_infinite, pc.invert(pc.is_inf(cast))), "out of range")
    require(pc.or_(meant_zero, pc.not_equal(cast, 0.0)), "out of range")
    return cast


def to_numeric(array: pa.Array, kind: ColumnType) -> pa.Array:
    """To ``numeric(p,s)``: a value with more digits than ``p`` or ``s`` allow is refused, not rounded."""
    _only(array)
    target: Any = arrow_type(kind)
    if pa.types.is_integer(array.type) or _may_wrap_around(array.type, target):
        array = array.cast(pa.string())
    elif pa.types.is_floating(array.type):
        # The shortest text that reads back as the same double: 0.1 has one decimal digit, not fifty-five.
        require(pc.is_finite(array), "not finite")
        array = array.cast(pa.string())
    if pa.types.is_string(array.type):
        require(pc.invert(pc.match_substring_regex(array, _NO_NUMBER)), "only numeric without a precision takes it")
        require(pc.match_substring_regex(array, _NUMERAL), "not a number")
        array = _within_digits(array, target.precision, target.scale)
    return array.cast(target)


def _may_wrap_around(source: Any, target: Any) -> bool:
    """Whether a scale that grows may exceed the digits of Arrow's decimals, which Arrow does not check."""
    if not pa.types.is_decimal(source):
        return False
    most = 76 if pa.types.is_decimal256(source) or pa.types.is_decimal256(target) else 38
    return bool(source.precision - source.scale + target.scale > most)


def _within_digits(texts: pa.Array, precision: int, scale: int) -> pa.Array:
    """Bring numerals to a form that Arrow reads safely: otherwise it wraps around, or ends the process."""
    whole, fraction = precision - scale, rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    plain = pc.match_substring_regex(texts, rf"^[+-]?{f'[0-9]{{1,{whole}}}' if whole else '0'}{fraction}$")
    strange = pc.fill_null(pc.invert(plain), False)
    if not pc.any(strange, min_count=0).as_py():
        return texts
    numerals: list[Any] = texts.filter(strange).to_pylist()
    written = [_digits_of(text, precision, scale) for text in numerals]
    return pc.replace_with_mask(texts, strange, pa.array(written, pa.string()))


def _digits_of(numeral: str, precision: int, scale: int) -> str:
    value = Decimal(numeral)
    if value.is_zero():
        return "0"
    if value.adjusted() >= precision - scale:
        raise DoesNotFitError("out of range")
    sign, digits, exponent = value.as_tuple()
    figures = "".join(map(str, digits)).rstrip("0")
    last = int(exponent) + len(digits) - len(figures)
    if last < -scale:
        raise DoesNotFitError(f"more than {scale} digits after the point")
    return format(Decimal((sign, tuple(map(int, figures)), last)), "f")


def to_bare_numeric(array: pa.Array, kind: ColumnType) -> pa.Array:
    """To ``numeric`` without a precision, as text: each value keeps its digits. Texts may be NaN or infinite."""
    _only(array)
    texts = array.cast(pa.string())
    numbers = pc.match_substring_regex(texts, _NUMERAL)
    if not pc.all(numbers, min_count=0).as_py():
        require(pc.or_(numbers, pc.match_substring_regex(texts, _NO_NUMBER)), "not a number")
    large = pc.or_(pc.match_substring_regex(texts, "[eE]"), pc.greater(pc.binary_length(texts), _SURELY_SMALL))
    if pc.any(large).as_py():
        for text in pc.drop_null(texts.filter(large)).to_pylist():
            if not numeric_holds(text):
                raise DoesNotFitError("out of range")
    return texts


_MOST_BYTES = 65_536
"""A longer number has more digits than ``numeric``."""

_FEW_BYTES = 100
"""Python writes an integer of so many bytes; of thousands of digits it writes none."""


def unscaled(digits: bytes, scale: int) -> str:
    """A decimal as text, from an integer in two's complement; raises `DoesNotFitError` if it is out of range."""
    if not 1 <= len(digits) <= _MOST_BYTES or abs(scale) > _DIGITS_BEFORE:
        raise DoesNotFitError("out of range" if digits else "no bytes")
    value = int.from_bytes(digits, "big", signed=True)
    if scale > 0 and len(digits) <= _FEW_BYTES:
        text = str(abs(value)).rjust(scale + 1, "0")
        return f"{'-' if value < 0 else ''}{text[:-scale]}.{text[-scale:]}"
    sign, figures, _ = Decimal(value).as_tuple()
    return format(Decimal((sign, figures, -scale)), "f")


def numeric_holds(numeral: str) -> bool:
    """Whether PostgreSQL's ``numeric`` can hold a number."""
    mantissa, _, exponent = re.sub("E", "e", numeral).partition("e")
    power = int(exponent or 0)
    if abs(power) > 2 * _DIGITS_BEFORE:
        return False
    whole, _, fraction = mantissa.partition(".")
    if len(fraction) - power > _DIGITS_AFTER:
        return False
    value = Decimal(mantissa)
    return value.is_zero() or len(whole.lstrip("+-0")) + power <= _DIGITS_BEFORE
