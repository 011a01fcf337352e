"""Read dates, timestamps and times from texts that Arrow refuses: exactly, or not at all.

These are the texts that PostgreSQL itself writes (``infinity``, ``0044-03-15 BC``, ``24:00:00``), ISO 8601 with years
of more than four digits or a sign, lower-case ``t`` and ``z``, and fractions of a second whose further digits are 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

from epochline.arrow.cast.calendar import DAY, INFINITE_DAYS, INFINITE_TICKS, day_number, days_since_1970, tick_number
from epochline.arrow.cast.checks import DoesNotFitError

_DATE = r"([+-]?)([0-9]{4,7})-([0-9]{2})-([0-9]{2})"
_CLOCK = r"([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?)?"
_OFFSET = r"([Zz]|([+-])([0-9]{2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?)"
_BEFORE_CHRIST = r"( BC)?"
_DAY_TEXT = re.compile(_DATE + _BEFORE_CHRIST)
_CLOCK_TEXT = re.compile(_CLOCK)
_MOMENT_TEXT = re.compile(rf"{_DATE}(?:[Tt ]{_CLOCK})?{_OFFSET}?{_BEFORE_CHRIST}")
_FARTHEST_OFFSET = 24 * 3600
"""Seconds. Arrow takes no offset of a day or more either."""


def read_texts(array: pa.Array, target: pa.DataType, read: Callable[[str], int]) -> pa.Array:
    """Read each text of an array into Arrow's number.

    Raises:
        DoesNotFitError: a text cannot be read exactly.
    """
    numbers = [None if text is None else read(text) for text in array.to_pylist()]
    return pa.array(numbers, pa.int32() if pa.types.is_date(target) else pa.int64()).cast(target)


def read_date(text: str) -> int:
    """Arrow's number of a date.

    Raises:
        DoesNotFitError: the text is no date of PostgreSQL.
    """
    if text.lower() in INFINITE_DAYS:
        return INFINITE_DAYS[text.lower()]
    found = _DAY_TEXT.fullmatch(text)
    if found is None:
        raise DoesNotFitError("not a date")
    return day_number(_day(*found.groups()))


def read_moment(text: str, *, has_zone: bool) -> int:
    """Arrow's number of a timestamp, in UTC if it has a zone.

    Raises:
        DoesNotFitError: the text is no timestamp of PostgreSQL, has more than six digits of a second that are not 0, or
            has an offset from UTC although the type has none, or the other way round.
    """
    if text.lower() in INFINITE_TICKS:
        return INFINITE_TICKS[text.lower()]
    found = _MOMENT_TEXT.fullmatch(text)
    if found is None:
        raise DoesNotFitError("not a timestamp in ISO 8601")
    sign, year, month, day, hour, minute, second, fraction, offset, *east, era = found.groups()
    if (offset is not None) is not has_zone:
        raise DoesNotFitError("no offset from UTC" if has_zone else "an offset from UTC")
    clock = 0 if hour is None else _clock(hour, minute, second, fraction)
    return tick_number(_day(sign, year, month, day, era) * DAY + clock - _offset(*east) * 1_000_000)


def read_time(text: str) -> int:
    """Microseconds of a time of day, up to ``24:00:00``.

    Raises:
        DoesNotFitError: the text is no time, or has more than six digits of a second that are not 0.
    """
    found = _CLOCK_TEXT.fullmatch(text)
    if found is None or found[2] is None:
        raise DoesNotFitError("not a time of day")
    return _clock(*found.groups())


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
