"""Read one member of a JSON object: check its value, and choose the Arrow type that carries it to the cast."""

import base64
import binascii
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.calendar import are_dates, are_ticks, microseconds, time_number
from epochline.arrow.cast.jsontext import Numeral, read_json, write_json
from epochline.arrow.cast.numbers import unscaled
from epochline.arrow.cast.reasons import DoesNotFitError, any_true, marked, require_utf8
from epochline.arrow.cast.temporal import read_text
from epochline.arrow.cast.types import arrow_type
from epochline.arrow.formats.json_cut import all_without_spaces
from epochline.declare.columns import INTEGERS, UNITS, ColumnType
from epochline.declare.patterns import written_path

_NULL = b"null"
_PLAIN = r'^["0-9-][^\\]*$'
"""A JSON text that is a number, or a text in quotes without an escape."""


class Member:
    """Reads one member of each object: alone with `take`, or by Arrow's reader, whose values `given` checks.

    ``steps`` lead to the value, from the outermost object inwards. ``unit`` is that of a number that stands for a time,
    ``scale`` that of a decimal that is sent as base64. With ``keeps_text``, a ``jsonb`` has the text of the record.
    Arrow's reader reads decimals as ``read_as`` and gives them as ``given_as``.
    """

    def __init__(
        self,
        name: str,
        kind: ColumnType,
        steps: tuple[str, ...],
        unit: str | None = None,
        scale: int | None = None,
        *,
        keeps_text: bool = False,
    ) -> None:
        self.name = name
        self.kind = kind
        self.steps = steps
        self.keeps_text = keeps_text and kind.name == "jsonb"
        self.carried, self._take, self.at_once = _form(kind)
        self.written = self.carried
        self._unit = None if unit is None else UnitOfTime(kind, unit)
        if self._unit is not None:
            self.at_once, self.written, self._take = self._unit.at_once, self._unit.carried, self._unit.take
            self.carried = arrow_type(kind)
        if scale is not None:
            self.at_once, self._take = False, partial(_decimal, scale)
        decimal = kind.name == "numeric" and kind.precision is not None
        self.read_as = _widest(kind) if decimal else pa.int64() if self._unit else self.carried
        self.given_as = arrow_type(kind) if decimal else self.carried

    def given(self, column: pa.Array) -> pa.Array:
        """What Arrow's reader read, as the cast takes it; raises `ArrowInvalid` if it must be read record by record."""
        if self._unit is not None:
            return self._unit.column(column)
        if pa.types.is_floating(self.given_as) and any_true(pc.is_inf(column)):
            raise pa.ArrowInvalid("out of range")
        return column.cast(self.given_as)

    def cut(self, values: list[bytes]) -> pa.Array:
        """Texts that were cut out of the records, read as by `take`; raises `DoesNotFitError` if one does not fit."""
        if self.keeps_text:
            return pa.array([None if text == "null" else text for text in all_without_spaces(values)], self.written)
        if self._take not in (_number, _number_or_text):
            return pa.array(map(self._read_cut, values), self.written, size=len(values)).cast(self.carried)
        texts = pa.array(values, pa.binary()).cast(pa.string())
        others = pc.invert(pc.match_substring_regex(texts, _PLAIN))
        read: list[Any] = texts.filter(others).cast(pa.binary()).to_pylist()
        return pc.replace_with_mask(
            pc.ascii_trim(texts, '"'), others, pa.array(map(self._read_cut, read), self.written, size=len(read))
        )

    def _read_cut(self, text: bytes) -> Any:
        if text == _NULL:
            return None
        if self._take is _bytes and b"\\" not in text and text[:1] == b'"':
            return _from_base64(text[1:-1])
        return self._take(read_json(text.decode()))

    def take(self, document: dict[str, Any]) -> Any:
        """The member's value as ``written``, None for null; raises `DoesNotFitError` if it does not fit the column."""
        value = self._within(document)
        if value is None:
            return None
        try:
            return self._take(value)
        except DoesNotFitError as error:
            raise DoesNotFitError(f"{self.name}: {_shown(value)} does not fit {self.kind} ({error})") from None

    def _within(self, value: Any) -> Any:
        for depth, step in enumerate(self.steps):
            if not isinstance(value, dict):
                where = written_path(self.steps[:depth])
                raise DoesNotFitError(f"{self.name}: {_shown(value)} at {where} is not an object")
            value = value.get(step)
            if value is None:
                break
        return value


def _shown(value: Any) -> str:
    text = write_json(value).encode("ascii", "backslashreplace").decode()
    return marked(text if len(text) <= 40 else f"{text[:40]}…")


def _document(value: Any) -> str:
    text = write_json(value)
    require_utf8(text)
    return text


def _list(value: Any) -> str:
    if not isinstance(value, list):
        raise DoesNotFitError("not an array")
    return _document(value)


def _number_or_text(value: Any) -> str:
    if not isinstance(value, str):
        raise DoesNotFitError("not a text or a number")
    return _text(str.__str__(value))


def _text(value: Any) -> str:
    if isinstance(value, Numeral) or not isinstance(value, str):
        raise DoesNotFitError("not a text in quotes")
    require_utf8(value)
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DoesNotFitError("not true or false")
    return value


_INTEGER = re.compile("-?[0-9]{1,19}")


def _integer(value: Any) -> int:
    if not isinstance(value, Numeral) or not _INTEGER.fullmatch(value) or not -(2**63) <= int(value) < 2**63:
        raise DoesNotFitError("not an integer in range")
    return int(value)


_NOT_ZERO = re.compile(r"-?[0.]*[1-9]")
_NO_NUMBERS = {text: float(text) for text in ("NaN", "Infinity", "-Infinity")}
"""Texts in quotes, as PostgreSQL and Java write what is no JSON number."""


def _double(value: Any) -> float:
    if not isinstance(value, Numeral):
        if isinstance(value, str) and value in _NO_NUMBERS:
            return _NO_NUMBERS[value]
        raise DoesNotFitError("not a number")
    number = float(value)
    if number in (float("inf"), float("-inf")) or (number == 0 and _NOT_ZERO.match(value)):
        raise DoesNotFitError("out of range")
    return number


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return _with_scale(value)
    if not isinstance(value, str):
        raise DoesNotFitError("not a number")
    return _text(str(value)) if not isinstance(value, Numeral) else str.__str__(value)


def _bytes(value: Any) -> bytes:
    r"""From base64, or from hexadecimal digits after ``\x`` as PostgreSQL writes them: base64 has no ``\``."""
    text = _text(value)
    try:
        return binascii.unhexlify(text[2:]) if text.startswith("\\x") else _from_base64(text)
    except ValueError as error:
        raise DoesNotFitError("not base64") from error


def _from_base64(text: str | bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise DoesNotFitError("not base64") from error


_COUNT = re.compile(r"(-?[0-9]{1,19})(?:\.([0-9]{1,9}))?")
_LEAST_SCALE, _MOST_SCALE = -16_383, 16_383


class UnitOfTime:
    """Reads a date or a time from a count of a unit of `UNITS`, or from a text as without a unit."""

    def __init__(self, kind: ColumnType, unit: str) -> None:
        self._arrow = arrow_type(kind)
        self._unit = unit
        self.carried: pa.DataType = pa.int32() if pa.types.is_date(self._arrow) else pa.int64()
        is_date = bool(pa.types.is_date(self._arrow))
        self.at_once = unit == "days" if is_date else UNITS[unit] >= UNITS["us"]
        """Whether `column` can read counts."""

    def take(self, value: Any) -> int:
        """Arrow's number of a value; raises `DoesNotFitError` if it is no count or text that PostgreSQL has."""
        if isinstance(value, str) and not isinstance(value, Numeral):
            return read_text(value, self._arrow)
        count = _COUNT.fullmatch(value) if isinstance(value, Numeral) else None
        if count is None:
            raise DoesNotFitError(f"not a number of {self._unit}")
        fraction = count[2] or ""
        micros = microseconds(int(count[1] + fraction), UNITS[self._unit], 10 ** len(fraction))
        return time_number(micros, self._arrow)

    def column(self, counts: pa.Array) -> pa.Array:
        """Arrow's numbers of whole counts; raises `ArrowInvalid` if PostgreSQL lacks one of the values."""
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


def _with_scale(value: dict[str, Any]) -> str:
    """A decimal with its scale, as Debezium writes one of a column without a fixed scale."""
    scale = value.get("scale")
    if set(value) != {"scale", "value"} or not isinstance(scale, Numeral) or not re.fullmatch("-?[0-9]{1,5}", scale):
        raise DoesNotFitError("not a number")
    return _decimal(int(scale), value["value"])


def _decimal(scale: int, value: Any) -> str:
    """A decimal of base64 of an integer in two's complement, as Kafka Connect writes it."""
    if isinstance(value, Numeral) or not isinstance(value, str):
        raise DoesNotFitError("not base64")
    if not _LEAST_SCALE <= scale <= _MOST_SCALE:
        raise DoesNotFitError("out of range")
    try:
        digits = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise DoesNotFitError("not base64") from error
    return unscaled(digits, scale)


def _widest(kind: ColumnType) -> pa.DataType:
    """The decimal to read a type with: Arrow's reader does not look whether a number exceeds the precision."""
    narrow = pa.decimal128(38, kind.scale or 0)
    return narrow if (kind.precision or 0) <= most_digits(narrow) else pa.decimal256(76, kind.scale or 0)


def most_digits(wide: Any) -> int:
    """How many digits a number may have, and an exponent of one digit, so that Arrow's reader does not wrap around."""
    return int(wide.precision - wide.scale - 9)


Take = Callable[[Any], Any]

_FORMS: dict[str, tuple[pa.DataType, Take, bool]] = {
    "boolean": (pa.bool_(), _boolean, True),
    **dict.fromkeys(INTEGERS, (pa.int64(), _integer, True)),
    **dict.fromkeys(("real", "double precision"), (pa.float64(), _double, True)),
    **dict.fromkeys(("json", "jsonb"), (pa.string(), _document, False)),
    "bytea": (pa.binary(), _bytes, False),
}
"""By type: the Arrow type that carries a value, the function that reads it, and whether Arrow's reader may read it."""


def _form(kind: ColumnType) -> tuple[pa.DataType, Take, bool]:
    if kind.name == "numeric":
        # Each digit counts, and Arrow's reader keeps only those of a fixed scale.
        return pa.string(), _number, kind.precision is not None
    if kind.element is not None:
        return pa.string(), _list, False
    if kind.by_text:
        return pa.string(), _number_or_text, False
    return _FORMS.get(kind.name, (pa.string(), _text, True))
