"""Members that stand for a time or a decimal in another form: counts of a unit, unscaled bytes. Exact, or refused."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import are_dates, are_ticks, microseconds, time_number
from epochline.arrow.cast.checks import DoesNotFitError
from epochline.arrow.cast.jsontext import Numeral
from epochline.arrow.cast.numbers import unscaled
from epochline.arrow.cast.time_texts import read_date, read_moment, read_time
from epochline.arrow.cast.types import arrow_type
from epochline.declare.columns import UNITS, ColumnType

_COUNT = re.compile(r"(-?[0-9]{1,19})(?:\.([0-9]{1,9}))?")
_LEAST_SCALE, _MOST_SCALE = -16_383, 16_383


class UnitOfTime:
    """Reads a date or a time from a count of a unit, or from a text as without a unit.

    Args:
        kind: of the column.
        unit: one of `UNITS`.
    """

    def __init__(self, kind: ColumnType, unit: str) -> None:
        self._kind = kind
        self._arrow = arrow_type(kind)
        self._unit = unit
        self.carried: pa.DataType = pa.int32() if pa.types.is_date(self._arrow) else pa.int64()
        is_date = bool(pa.types.is_date(self._arrow))
        self.at_once = unit == "days" if is_date else UNITS[unit] >= UNITS["us"]
        """Whether `column` can read counts."""

    def take(self, value: Any) -> int:
        """Arrow's number of the value of one member.

        Raises:
            DoesNotFitError: it is no such count or text, or PostgreSQL has no such value.
        """
        if isinstance(value, str) and not isinstance(value, Numeral):
            return self._text(value)
        found = _COUNT.fullmatch(value) if isinstance(value, Numeral) else None
        if found is None:
            raise DoesNotFitError(f"not a number of {self._unit}")
        fraction = found[2] or ""
        micros = microseconds(int(found[1] + fraction), UNITS[self._unit], 10 ** len(fraction))
        return time_number(micros, self._arrow)

    def _text(self, text: str) -> int:
        if pa.types.is_date(self._arrow):
            return read_date(text)
        if pa.types.is_time(self._arrow):
            return read_time(text)
        return read_moment(text, has_zone=self._kind.name == "timestamp with time zone")

    def column(self, counts: pa.Array) -> pa.Array:
        """Arrow's numbers of whole counts.

        Raises:
            ArrowInvalid: PostgreSQL lacks one of the values.
        """
        if pa.types.is_date(self._arrow):
            numbers = counts.cast(pa.int32())
            fit = pc.and_(are_dates(numbers), pc.greater(numbers, _BEFORE_EVERY_DATE))
        else:
            numbers = pc.multiply_checked(counts, UNITS[self._unit] // UNITS["us"])
            fit = pc.and_(are_ticks(numbers), pc.greater(numbers, _BEFORE_EVERY_TICK))
            if pa.types.is_time(self._arrow):
                fit = pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, UNITS["days"] // UNITS["us"]))
        if not pc.all(fit, min_count=0).as_py():
            raise pa.ArrowInvalid("out of range")
        return numbers.cast(self._arrow)


_BEFORE_EVERY_DATE, _BEFORE_EVERY_TICK = -(2**30), -(2**60)
"""Lower numbers stand for infinity and the like, which no count means."""


def scaled_by(scale: int) -> Callable[[Any], str]:
    """The reader of base64 of an integer in two's complement, as Kafka Connect writes a decimal of this scale."""
    return lambda value: _decimal(value, scale)


def with_scale(value: dict[str, Any]) -> str:
    """A decimal with its scale, as Debezium writes one of a column without a fixed scale.

    Raises:
        DoesNotFitError: it is another object.
    """
    scale = value.get("scale")
    if set(value) != {"scale", "value"} or not isinstance(scale, Numeral) or not re.fullmatch("-?[0-9]{1,5}", scale):
        raise DoesNotFitError("not a number")
    return _decimal(value["value"], int(scale))


def _decimal(value: Any, scale: int) -> str:
    if isinstance(value, Numeral) or not isinstance(value, str):
        raise DoesNotFitError("not base64")
    if not _LEAST_SCALE <= scale <= _MOST_SCALE:
        raise DoesNotFitError("out of range")
    try:
        return unscaled(binascii.a2b_base64(value, strict_mode=True), scale)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise DoesNotFitError("not base64") from error
