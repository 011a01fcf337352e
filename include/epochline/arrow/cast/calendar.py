"""Dates, timestamps and times that Arrow and Python cannot write: how Arrow's integers carry them, and their texts.

PostgreSQL counts from 2000 and Arrow from 1970, in integers of one size. PostgreSQL's number plus the distance between
the two is taken modulo this size, so each of PostgreSQL's values has a number in Arrow and none is lost: the years
294247 to 294276, ``infinity`` and ``-infinity`` have numbers that lie far before 4713 BC. Arrow and Spark would take
them for such years, so only tables and topics get them (`only_postgres`).
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.reasons import DoesNotFitError

DAY = 86_400_000_000
"""Microseconds of a day. As a time it is ``24:00:00``, which Arrow and Python read as ``00:00:00``."""

_YEAR_1, _YEAR_10000 = -719_162, 2_932_897
_YEAR_2000 = 10_957
"""Days from 1970-01-01 to January 1 of these years."""

# PostgreSQL's calendar begins with Julian day 0 (4713 BC). Its timestamps end with 294276, its dates with 5874897.
_FIRST_DAY, _LAST_DAY, _LAST_DAY_OF_TIMESTAMPS = -2_440_588, 2_145_042_905, 106_762_939
_FIRST_TICK, _AFTER_TICKS = _FIRST_DAY * DAY, (_LAST_DAY_OF_TIMESTAMPS + 1) * DAY
_NOT_A_TIME = -(2**63)
"""NumPy's number for a missing time. It would be a microsecond of the year 294247, and is refused."""

_MINUS_INFINITE_DAY, _MINUS_INFINITE_TICK = -(2**31) + _YEAR_2000, -(2**63) + _YEAR_2000 * DAY
INFINITE_DAYS = {"infinity": _MINUS_INFINITE_DAY - 1, "-infinity": _MINUS_INFINITE_DAY}
INFINITE_TICKS = {"infinity": _MINUS_INFINITE_TICK - 1, "-infinity": _MINUS_INFINITE_TICK}
"""Arrow's numbers of these texts, as a date and as a timestamp."""

_BEFORE_2000 = {pa.date32(): pa.scalar(_YEAR_2000, pa.int32()), pa.time64("us"): pa.scalar(0, pa.int64())}
_DAY_TEXTS, _TICK_TEXTS = ({number: text for text, number in of.items()} for of in (INFINITE_DAYS, INFINITE_TICKS))


def day_number(day: int) -> int:
    """Arrow's number of a date, from days since 1970-01-01; raises `DoesNotFitError` if PostgreSQL has no such date."""
    if not _FIRST_DAY <= day <= _LAST_DAY:
        raise DoesNotFitError("outside 4713 BC to 5874897 AD")
    return day


def tick_number(tick: int) -> int:
    """Arrow's number of a timestamp, from microseconds since 1970-01-01; raises `DoesNotFitError` as `day_number`."""
    if not _FIRST_TICK <= tick < _AFTER_TICKS or tick == _NOT_A_TIME + 2**64:
        raise DoesNotFitError("outside 4713 BC to 294276 AD")
    return tick if tick < 2**63 else tick - 2**64


def microseconds(count: int, unit: int, parts: int = 1) -> int:
    """Microseconds of ``count / parts`` units of ``unit`` nanoseconds; raises `DoesNotFitError` unless whole."""
    whole, rest = divmod(count * unit, 1000 * parts)
    if rest:
        raise DoesNotFitError("more than six digits of a second")
    return whole


def time_number(micros: int, arrow: pa.DataType) -> int:
    """Arrow's number of a date, timestamp or time; raises `DoesNotFitError` if PostgreSQL has no such value."""
    if pa.types.is_timestamp(arrow):
        return tick_number(micros)
    if pa.types.is_time(arrow):
        if not 0 <= micros <= DAY:
            raise DoesNotFitError("not within a day")
        return micros
    day, rest = divmod(micros, DAY)
    if rest:
        raise DoesNotFitError("not at midnight")
    return day_number(day)


def are_dates(numbers: pa.Array) -> pa.Array:
    """Which of Arrow's numbers are dates of PostgreSQL."""
    finite = pc.and_(pc.greater_equal(numbers, _FIRST_DAY), pc.less_equal(numbers, _LAST_DAY))
    return pc.or_(finite, pc.is_in(numbers, pa.array(list(INFINITE_DAYS.values()), numbers.type)))


def are_ticks(numbers: pa.Array) -> pa.Array:
    """Which of Arrow's numbers are timestamps of PostgreSQL."""
    late = pc.and_(pc.less_equal(numbers, _MINUS_INFINITE_TICK), pc.greater(numbers, _NOT_A_TIME))
    return pc.or_(pc.greater_equal(numbers, _FIRST_TICK), late)


def since_2000(column: pa.Array) -> pa.Array:
    """Dates, timestamps or times as the integers that PostgreSQL keeps. Their binary forms are the same."""
    distance = _BEFORE_2000.get(column.type, pa.scalar(_YEAR_2000 * DAY, pa.int64()))
    return pc.subtract(column.cast(distance.type), distance)  # wraps around


def only_postgres(column: pa.Array) -> list[int]:
    """Rows of a date, timestamp or time whose value Arrow, Python and Spark would take for another one."""
    kind = column.type
    if pa.types.is_date(kind):
        strange = pc.less(column.cast(pa.int32()), _FIRST_DAY)
    elif pa.types.is_timestamp(kind):
        strange = pc.less(column.cast(pa.int64()), _FIRST_TICK)
    elif pa.types.is_time(kind):
        strange = pc.equal(column.cast(pa.int64()), DAY)
    else:
        return []
    rows: list[int] = pc.indices_nonzero(pc.fill_null(strange, False)).to_pylist()
    return rows


def to_python(column: pa.Array) -> list[Any]:
    """The values for people: as Python has them, else the text that PostgreSQL shows in UTC."""
    kind = column.type
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind)):
        return list(column.to_pylist())
    beyond = set(only_postgres(column) if pa.types.is_time(kind) else outside_years(column))
    if not beyond:
        return list(column.to_pylist())
    texts = spelled_out(column).to_pylist()
    plain = pc.if_else(pa.array([row in beyond for row in range(len(column))]), None, column).to_pylist()
    return [texts[row] if row in beyond else value for row, value in enumerate(plain)]


def spelled_out(column: pa.Array) -> pa.Array:
    """The column, as PostgreSQL's texts if a year has not four digits or a time is 24:00: Arrow writes neither."""
    if pa.types.is_time(column.type):
        if not only_postgres(column):
            return column
        return pc.if_else(pc.equal(column.cast(pa.int64()), DAY), "24:00:00", column.cast(pa.string()))
    is_date, ticks, per_day = _ticks(column)
    bounds = pc.min_max(ticks)
    if bounds["min"].as_py() is None:
        return column
    if bounds["min"].as_py() >= _YEAR_1 * per_day and bounds["max"].as_py() < _YEAR_10000 * per_day:
        return column
    zone = "+00" if not is_date and column.type.tz else ""
    texts = [None if tick is None else _date(tick) if is_date else _timestamp(tick, zone) for tick in ticks.to_pylist()]
    return pa.array(texts, pa.string())


def outside_years(column: pa.Array) -> list[int]:
    """Rows of dates or timestamps outside the years 1 to 9999, which ISO 8601 and Python cannot write."""
    _, ticks, per_day = _ticks(column)
    outside = pc.or_(pc.less(ticks, _YEAR_1 * per_day), pc.greater_equal(ticks, _YEAR_10000 * per_day))
    rows: list[int] = pc.indices_nonzero(pc.fill_null(outside, False)).to_pylist()
    return rows


def _ticks(column: pa.Array) -> tuple[bool, pa.Array, int]:
    """Whether a column holds dates, its days or microseconds since 1970, and how many of these make a day."""
    is_date = bool(pa.types.is_date(column.type))
    return is_date, column.cast(pa.int32() if is_date else pa.int64()), 1 if is_date else DAY


def _date(day: int) -> str:
    if day in _DAY_TEXTS:
        return _DAY_TEXTS[day]
    year, month, day_of_month = civil(day)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day_of_month:02d}{'' if year > 0 else ' BC'}"


def _timestamp(tick: int, zone: str) -> str:
    if tick in _TICK_TEXTS:
        return _TICK_TEXTS[tick]
    day, rest = divmod(tick if tick >= _FIRST_TICK else tick + 2**64, DAY)
    seconds, micros = divmod(rest, 1_000_000)
    minutes, second = divmod(seconds, 60)
    date, space, era = _date(day).partition(" ")
    return f"{date} {minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{micros:06d}{zone}{space}{era}"


def civil(days: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day of a number of days since 1970-01-01, in the Gregorian calendar."""
    date = np.datetime64(days, "D")
    month = date.astype("datetime64[M]")
    months = int(month.astype(np.int64))
    return 1970 + months // 12, months % 12 + 1, int((date - month).astype(np.int64)) + 1


def days_since_1970(year: int, month: int, day: int) -> int:
    """The days from 1970-01-01 to a date, the inverse of `civil`; raises `DoesNotFitError` if there is no such date."""
    days = int(np.datetime64((year - 1970) * 12 + month - 1, "M").astype("datetime64[D]").astype(np.int64)) + day - 1
    if civil(days) != (year, month, day):
        raise DoesNotFitError("not a date")
    return days
