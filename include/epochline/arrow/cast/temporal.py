"""Cast to dates, timestamps and times in PostgreSQL's range of years: exactly, or not at all.

Arrow refuses texts that are read here: those that PostgreSQL itself writes (``infinity``, ``0044-03-15 BC``,
``24:00:00``), years of more than four digits or with a sign, ``t`` and ``z``, and further digits of a second that are
0.
"""

import re

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import (
    DAY,
    INFINITE_DAYS,
    INFINITE_TICKS,
    are_dates,
    are_ticks,
    day_number,
    days_since_1970,
    tick_number,
)
from epochline.arrow.cast.reasons import DoesNotFitError, require
from epochline.arrow.cast.types import arrow_type
from epochline.declare.columns import ColumnType

_DATE = r"([+-]?)([0-9]{4,7})-([0-9]{2})-([0-9]{2})"
_CLOCK = r"([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?)?"
_OFFSET = r"([Zz]|([+-])([0-9]{2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?)"
_BEFORE_CHRIST = r"( BC)?"
_DAY_TEXT = re.compile(_DATE + _BEFORE_CHRIST)
_CLOCK_TEXT = re.compile(_CLOCK)
_MOMENT_TEXT = re.compile(rf"{_DATE}(?:[Tt ]{_CLOCK})?{_OFFSET}?{_BEFORE_CHRIST}")
_FARTHEST_OFFSET = 24 * 3600
"""Seconds. Arrow takes no offset of a day or more either."""


def _read_texts(array: pa.Array, target: pa.DataType) -> pa.Array:
    numbers = [None if text is None else read_text(text, target) for text in array.to_pylist()]
    return pa.array(numbers, pa.int32() if pa.types.is_date(target) else pa.int64()).cast(target)


def read_text(text: str, arrow: pa.DataType) -> int:
    """Arrow's number of a date, timestamp or time; raises `DoesNotFitError` as the reader of the type does."""
    if pa.types.is_timestamp(arrow):
        return read_moment(text, has_zone=arrow.tz is not None)
    return read_date(text) if pa.types.is_date(arrow) else read_time(text)


def read_date(text: str) -> int:
    """Arrow's number of a date; raises `DoesNotFitError` if the text is no date of PostgreSQL."""
    if text.lower() in INFINITE_DAYS:
        return INFINITE_DAYS[text.lower()]
    match = _DAY_TEXT.fullmatch(text)
    if match is None:
        raise DoesNotFitError("not a date")
    return day_number(_day(*match.groups()))


def read_moment(text: str, *, has_zone: bool) -> int:
    """Arrow's number of a timestamp, in UTC if it has a zone; raises `DoesNotFitError` if it has none in Arrow."""
    if text.lower() in INFINITE_TICKS:
        return INFINITE_TICKS[text.lower()]
    match = _MOMENT_TEXT.fullmatch(text)
    if match is None:
        raise DoesNotFitError("not a timestamp in ISO 8601")
    sign, year, month, day, hour, minute, second, fraction, offset, *east, era = match.groups()
    if (offset is not None) is not has_zone:
        raise DoesNotFitError("no offset from UTC" if has_zone else "an offset from UTC")
    clock = 0 if hour is None else _clock(hour, minute, second, fraction)
    return tick_number(_day(sign, year, month, day, era) * DAY + clock - _offset(*east) * 1_000_000)


def read_time(text: str) -> int:
    """Microseconds of a time of day, up to ``24:00:00``; raises `DoesNotFitError` for a text that is no time of day."""
    match = _CLOCK_TEXT.fullmatch(text)
    if match is None or match[2] is None:
        raise DoesNotFitError("not a time of day")
    return _clock(*match.groups())


def _day(sign: str, year: str, month: str, day: str, era: str | None) -> int:
    number = int(year)
    if era is not None:
        if sign or number == 0:
            raise DoesNotFitError("not a year BC")
        number = 1 - number
    return days_since_1970(-number if sign == "-" else number, int(month), int(day))


def _clock(hour: str, minute: str | None, second: str | None, fraction: str | None) -> int:
    digits = (fraction or "").rstrip("0")
    if len(digits) > 6:
        raise DoesNotFitError("more than six digits of a second")
    if int(minute or 0) > 59 or int(second or 0) > 59:
        raise DoesNotFitError("not a time of day")
    clock = ((int(hour) * 60 + int(minute or 0)) * 60 + int(second or 0)) * 1_000_000 + int(digits.ljust(6, "0"))
    if clock > DAY:
        raise DoesNotFitError("not a time of day")
    return clock


def _offset(sign: str | None, hours: str | None, minutes: str | None, seconds: str | None) -> int:
    if sign is None:
        return 0
    offset = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    if int(minutes or 0) > 59 or int(seconds or 0) > 59 or offset >= _FARTHEST_OFFSET:
        raise DoesNotFitError("not an offset from UTC")
    return -offset if sign == "-" else offset


# Days further from 1970 overflow 64 bits as microseconds, and Arrow does not check it.
_DAYS_IN_64_BITS = 106_000_000


def to_timestamp(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From timestamps of any unit and zone, dates, and texts. Without a zone, a timestamp counts as UTC."""
    source, target = array.type, arrow_type(kind)
    if not (pa.types.is_timestamp(source) or pa.types.is_date(source) or pa.types.is_string(source)):
        raise pa.ArrowTypeError("no timestamp")
    if pa.types.is_string(source):
        try:
            return _keeping(array.cast(target), kind)
        except pa.ArrowInvalid:
            return _keeping(_read_texts(array, target), kind)
    if pa.types.is_date(source):
        days = array.cast(pa.date32()).cast(pa.int32())
        require(pc.less(pc.abs_checked(days.cast(pa.int64())), _DAYS_IN_64_BITS), "out of range")
    cast = array.cast(target)
    require(are_ticks(cast.cast(pa.int64())), "before 4713 BC")
    return _keeping(cast, kind)


def to_date(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From dates, timestamps at midnight UTC, and texts in ISO 8601 or as PostgreSQL writes them."""
    source = array.type
    if not (pa.types.is_timestamp(source) or pa.types.is_date(source) or pa.types.is_string(source)):
        raise pa.ArrowTypeError("no date")
    if pa.types.is_string(source):
        try:
            return array.cast(pa.date32())
        except pa.ArrowInvalid:
            return _read_texts(array, pa.date32())
    cast = array.cast(pa.date32())
    if pa.types.is_timestamp(source):  # Arrow drops the time of day silently
        moments = array.cast(pa.timestamp("us"))
        require(pc.equal(cast.cast(pa.timestamp("us")), moments), "not at midnight")
    require(are_dates(cast.cast(pa.int32())), "outside 4713 BC to 5874897 AD")
    return cast


def to_time(array: pa.Array, kind: ColumnType) -> pa.Array:
    """From times of day up to ``24:00:00``, and texts ``HH:MM[:SS[.ffffff]]``."""
    if pa.types.is_string(array.type):
        plain = r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?$"
        if not pc.all(pc.match_substring_regex(array, plain), min_count=0).as_py():
            return _keeping(_read_texts(array, pa.time64("us")), kind)
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
