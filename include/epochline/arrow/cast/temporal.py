"""Cast to dates, timestamps and times in PostgreSQL's range of years."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.checks import require
from epochline.arrow.cast.types import arrow_type
from epochline.declare.columns import ColumnType

# PostgreSQL's calendar begins with Julian day 0 (4713 BC). Its timestamps end in 294276 AD, after the range of Arrow's
# microseconds. Its dates end in 5874897 AD, within the range of Arrow's dates.
_JULIAN_DAY_0 = -2_440_588
_FIRST_MICROSECOND = _JULIAN_DAY_0 * 86_400_000_000
_LAST_DAY = 2_145_042_905
_DAY = 86_400_000_000
# Days further from 1970 overflow 64 bits as microseconds, and Arrow does not check it.
_DAYS_IN_64_BITS = 106_000_000


def to_timestamp(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From timestamps of any unit and zone, dates, and ISO 8601 texts.

    A timestamp without a zone counts as UTC, and one with a zone is converted to UTC. A text must have an offset for a
    type with a zone, and none for a type without.
    """
    given = array.type
    if not (pa.types.is_timestamp(given) or pa.types.is_date(given) or pa.types.is_string(given)):
        raise pa.ArrowTypeError("no timestamp")
    if pa.types.is_date(given):
        days = array.cast(pa.date32()).cast(pa.int32())
        require(pc.less(pc.abs_checked(days.cast(pa.int64())), _DAYS_IN_64_BITS), "out of range")
    cast = array.cast(arrow_type(kind))
    require(pc.greater_equal(cast.cast(pa.int64()), _FIRST_MICROSECOND), "before 4713 BC")
    return _keeping(cast, kind)


def to_date(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From dates, timestamps at midnight UTC, and ISO 8601 texts."""
    given = array.type
    if not (pa.types.is_timestamp(given) or pa.types.is_date(given) or pa.types.is_string(given)):
        raise pa.ArrowTypeError("no date")
    cast = array.cast(pa.date32())
    if pa.types.is_timestamp(given):  # Arrow drops the time of day silently
        moments = array.cast(pa.timestamp("us"))
        require(pc.equal(cast.cast(pa.timestamp("us")), moments), "not at midnight")
    days = cast.cast(pa.int32())
    in_range = pc.and_(pc.greater_equal(days, _JULIAN_DAY_0), pc.less_equal(days, _LAST_DAY))
    require(in_range, "outside 4713 BC to 5874897 AD")
    return cast


def to_time(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From times of day and texts ``HH:MM[:SS[.ffffff]]``."""
    if pa.types.is_string(array.type):
        require(
            pc.match_substring_regex(array, r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?$"),
            "not a time of day",
        )
        # Arrow casts texts to timestamps, but not to times.
        moment = pc.binary_join_element_wise("1970-01-01T", array, "", null_handling="emit_null")
        return _keeping(moment.cast(pa.timestamp("us")).cast(pa.time64("us")), kind)
    if not pa.types.is_time(array.type):
        raise pa.ArrowTypeError("no time")
    cast = array.cast(pa.time64("us"))
    ticks = cast.cast(pa.int64())
    require(pc.and_(pc.greater_equal(ticks, 0), pc.less(ticks, _DAY)), "not within a day")
    return _keeping(cast, kind)


def _keeping(cast: pa.Array, kind: ColumnType) -> pa.Array:
    """Refuse more digits of a second than the type keeps: PostgreSQL would round them."""
    if kind.digits is not None:
        unit = 10 ** (6 - kind.digits)
        ticks = cast.cast(pa.int64())
        whole = pc.multiply(pc.divide(ticks, unit), unit)
        require(pc.equal(ticks, whole), f"more than {kind.digits} digits of a second")
    return cast
