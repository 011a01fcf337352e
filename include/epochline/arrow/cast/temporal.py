"""Cast to dates, timestamps and times in PostgreSQL's range of years."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import DAY, are_dates, are_ticks
from epochline.arrow.cast.checks import require
from epochline.arrow.cast.time_texts import read_date, read_moment, read_texts, read_time
from epochline.arrow.cast.types import arrow_type
from epochline.declare.columns import ColumnType

# Days further from 1970 overflow 64 bits as microseconds, and Arrow does not check it.
_DAYS_IN_64_BITS = 106_000_000


def to_timestamp(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From timestamps of any unit and zone, dates, and texts in ISO 8601 or as PostgreSQL writes them.

    A timestamp without a zone counts as UTC, and one with a zone is converted to UTC. A text must have an offset for a
    type with a zone, and none for a type without. Digits of a second that the type does not keep are refused.
    """
    given, target = array.type, arrow_type(kind)
    if not (pa.types.is_timestamp(given) or pa.types.is_date(given) or pa.types.is_string(given)):
        raise pa.ArrowTypeError("no timestamp")
    if pa.types.is_string(given):
        try:
            return _keeping(array.cast(target), kind)
        except pa.ArrowInvalid:
            has_zone = kind.name == "timestamp with time zone"
            return _keeping(read_texts(array, target, partial(read_moment, has_zone=has_zone)), kind)
    if pa.types.is_date(given):
        days = array.cast(pa.date32()).cast(pa.int32())
        require(pc.less(pc.abs_checked(days.cast(pa.int64())), _DAYS_IN_64_BITS), "out of range")
    cast = array.cast(target)
    require(are_ticks(cast.cast(pa.int64())), "before 4713 BC")
    return _keeping(cast, kind)


def to_date(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From dates, timestamps at midnight UTC, and texts in ISO 8601 or as PostgreSQL writes them."""
    given = array.type
    if not (pa.types.is_timestamp(given) or pa.types.is_date(given) or pa.types.is_string(given)):
        raise pa.ArrowTypeError("no date")
    if pa.types.is_string(given):
        try:
            return array.cast(pa.date32())
        except pa.ArrowInvalid:
            return read_texts(array, pa.date32(), read_date)
    cast = array.cast(pa.date32())
    if pa.types.is_timestamp(given):  # Arrow drops the time of day silently
        moments = array.cast(pa.timestamp("us"))
        require(pc.equal(cast.cast(pa.timestamp("us")), moments), "not at midnight")
    require(are_dates(cast.cast(pa.int32())), "outside 4713 BC to 5874897 AD")
    return cast


def to_time(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From times of day up to ``24:00:00``, and texts ``HH:MM[:SS[.ffffff]]``."""
    if pa.types.is_string(array.type):
        plain = r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?$"
        if not pc.all(pc.match_substring_regex(array, plain), min_count=0).as_py():
            return _keeping(read_texts(array, pa.time64("us"), read_time), kind)
        # Arrow casts texts to timestamps, but not to times.
        moment = pc.binary_join_element_wise("1970-01-01T", array, "", null_handling="emit_null")
        return _keeping(moment.cast(pa.timestamp("us")).cast(pa.time64("us")), kind)
    if not pa.types.is_time(array.type):
        raise pa.ArrowTypeError("no time")
    cast = array.cast(pa.time64("us"))
    ticks = cast.cast(pa.int64())
    require(pc.and_(pc.greater_equal(ticks, 0), pc.less_equal(ticks, DAY)), "not within a day")
    return _keeping(cast, kind)


def _keeping(cast: pa.Array, kind: ColumnType) -> pa.Array:
    """Refuse more digits of a second than the type keeps: PostgreSQL would round them."""
    if kind.digits is not None:
        unit = 10 ** (6 - kind.digits)
        ticks = cast.cast(pa.int64())
        whole = pc.multiply(pc.divide(ticks, unit), unit)
        require(pc.equal(ticks, whole), f"more than {kind.digits} digits of a second")
    return cast
