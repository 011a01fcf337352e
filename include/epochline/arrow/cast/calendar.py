"""Dates and timestamps as text, for years that Arrow and Python cannot write."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -719_162, 2_932_897
"""Days from 1970-01-01 to January 1 of these years."""


def spelled_out(column: pa.Array) -> pa.Array:
    """The column unchanged if every year has four digits, else as texts that PostgreSQL reads.

    Arrow writes a year after 32767 as ``<value out of range>``, and one before 1 as a negative number.
    """
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
    return is_date, column.cast(pa.int32() if is_date else pa.int64()), 1 if is_date else _DAY


def _date(day: int) -> str:
    year, month, day_of_month = civil(day)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day_of_month:02d}{'' if year > 0 else ' BC'}"


def _timestamp(tick: int, zone: str) -> str:
    day, rest = divmod(tick, _DAY)
    seconds, micros = divmod(rest, 1_000_000)
    minutes, second = divmod(seconds, 60)
    date, space, era = _date(day).partition(" ")
    return f"{date} {minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{micros:06d}{zone}{space}{era}"


def civil(days: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day of a number of days since 1970-01-01, in the Gregorian calendar."""
    # Years that begin in March have the leap day last, and 400 of them always have 146097 days.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1
