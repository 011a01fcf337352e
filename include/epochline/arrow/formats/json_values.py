"""Read JSON records: all at once by Arrow's reader if it can separate them, else one by one.

The reader of single records defines the result. Arrow's reader is used only for values on which both agree, so that a
record gives the same values whatever other records are in its batch.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from epochline.arrow.cast.checks import DoesNotFitError, any_true, require_utf8
from epochline.arrow.cast.jsontext import Numeral, read_json, write_json
from epochline.arrow.cast.reasons import marked
from epochline.arrow.cast.types import arrow_type
from epochline.arrow.formats.json_at_once import found, is_in, is_plain, nested, strange_number, widest
from epochline.arrow.formats.json_numbers import UnitOfTime, scaled_by, with_scale
from epochline.declare.columns import INTEGERS, ColumnType
from epochline.declare.json_paths import written_path

# A failing batch with fewer records is read one by one instead of being halved again.
_ONE_BY_ONE = 256


class JsonReader:
    """Reads JSON objects into columns, which `cast_column` then casts.

    Args:
        columns: the members to read, with their types.
        steps: by column, the names of the members that lead to its value, from the outermost object inwards.
        units: by column, the unit of a number that stands for a date or a time.
        scales: by column, the scale of a decimal that is sent as base64 of its unscaled integer.
    """

    def __init__(
        self,
        columns: Mapping[str, ColumnType],
        steps: Mapping[str, tuple[str, ...]],
        units: Mapping[str, str] = MappingProxyType({}),
        scales: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._members = {
            name: _Member(name, kind, steps[name], units.get(name), scales.get(name)) for name, kind in columns.items()
        }
        read_as: dict[tuple[str, ...], pa.DataType] = {}
        # Arrow's reader gives one type for each value, so two columns of one value must agree on it.
        self._at_once = all(
            member.at_once and read_as.setdefault(member.steps, member.read_as) == member.read_as
            for member in self._members.values()
        )
        self._schema = nested(read_as) if self._at_once else None
        self._strange_number = strange_number(read_as.values())

    def read(self, texts: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """The columns, and the reason for each row that is not such an object. ``texts`` must not contain NULL."""
        if self._at_once and len(texts) >= _ONE_BY_ONE:
            columns = self._read_at_once(texts)
            if columns is not None:
                return columns, {}
            middle = len(texts) // 2
            left, problems = self.read(texts.slice(0, middle))
            right, more = self.read(texts.slice(middle))
            problems |= {middle + row: reason for row, reason in more.items()}
            return [joined(pair) for pair in zip(left, right, strict=True)], problems
        documents: list[Any] = texts.to_pylist()
        return self.read_each(documents)

    def _read_at_once(self, texts: pa.Array) -> list[pa.Array] | None:
        """Read all records with Arrow's reader. Returns None unless each text certainly gave one row.

        Every text begins with ``{`` and ends with ``}``. Inside a document no ``{`` can directly follow a ``}``, and a
        string cannot contain the line feed between two texts. So no document spans two texts, and each text gives at
        least one row. If there are as many rows as texts, each text gave exactly one.
        """
        if not is_plain(texts):
            return None
        lines = pc.binary_join_element_wise(texts, "", "\n")
        data: Any = lines.buffers()[2]
        if self._strange_number and is_in(data, self._strange_number):
            return None
        source: Any = pa.BufferReader(data)  # the stubs know only files of Python
        try:
            table = pyarrow.json.read_json(
                source,
                pyarrow.json.ReadOptions(use_threads=False, block_size=max(data.size + 1, 1024)),
                pyarrow.json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
            )
            if table.num_rows != len(texts):
                return None
            return [member.given(found(table, member.steps)) for member in self._members.values()]
        except pa.ArrowInvalid:
            return None

    def read_each(self, texts: list[str]) -> tuple[list[pa.Array], dict[int, str]]:
        """As `read`, but one record after the other."""
        values: list[list[Any]] = [[] for _ in self._members]
        problems: dict[int, str] = {}
        members = list(self._members.values())
        for row, text in enumerate(texts):
            try:
                document = read_json(text)
                if not isinstance(document, dict):
                    raise DoesNotFitError("not a JSON object")
                taken = [member.take(document) for member in members]
            except DoesNotFitError as error:
                problems[row] = str(error)
                taken = [None] * len(members)
            for column, value in zip(values, taken, strict=True):
                column.append(value)
        columns = [
            pa.array(column, member.written).cast(member.carried)
            for column, member in zip(values, members, strict=True)
        ]
        return columns, problems


def joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """Join columns of one member: decimals become texts where others are texts, because some were read one by one."""
    if any(pa.types.is_string(one.type) for one in arrays):
        arrays = [one.cast(pa.string()) for one in arrays]
    return pa.concat_arrays(arrays)


class _Member:
    """Reads one member: it checks the JSON value and chooses the Arrow type that carries it to the cast.

    Arrow's reader has other types for decimals: it reads them as ``read_as`` and gives them as ``given_as``.
    """

    def __init__(
        self, name: str, kind: ColumnType, steps: tuple[str, ...], unit: str | None = None, scale: int | None = None
    ) -> None:
        self.name = name
        self.kind = kind
        self.steps = steps
        self._nested = steps != (name,)
        self.at_once = True
        self.carried: pa.DataType = pa.string()
        self.written: pa.DataType = pa.string()
        self._take: Callable[[Any], Any] = _text
        if kind.name == "boolean":
            self.carried = self.written = pa.bool_()
            self._take = _boolean
        elif kind.name in INTEGERS:
            self.carried = self.written = pa.int64()
            self._take = _integer
        elif kind.name in ("real", "double precision"):
            self.carried = self.written = pa.float64()
            self._take = _double
        elif kind.name == "numeric":
            # Each digit counts, and Arrow's reader keeps only those of a fixed scale.
            self.at_once = kind.precision is not None
            self._take = _number
        elif kind.name in ("json", "jsonb"):
            self.at_once = False
            self._take = _document
        elif kind.element is not None:
            self.at_once = False
            self._take = _list
        elif kind.by_text:
            self.at_once = False
            self._take = _number_or_text
        elif kind.name == "bytea":
            self.at_once = False
            self.carried = self.written = pa.binary()
            self._take = _bytes
        self._unit = None if unit is None else UnitOfTime(kind, unit)
        if self._unit is not None:
            self.at_once, self.written, self._take = self._unit.at_once, self._unit.carried, self._unit.take
            self.carried = arrow_type(kind)
        if scale is not None:
            self.at_once, self._take = False, scaled_by(scale)
        decimal = kind.name == "numeric" and kind.precision is not None
        self.read_as = widest(kind) if decimal else pa.int64() if self._unit else self.carried
        self.given_as = arrow_type(kind) if decimal else self.carried

    def given(self, column: pa.Array) -> pa.Array:
        """What Arrow's reader read, as the cast takes it.

        Raises:
            ArrowInvalid: the reader of single records has to read it.
        """
        if self._unit is not None:
            return self._unit.column(column)
        if pa.types.is_floating(self.given_as) and any_true(pc.is_inf(column)):
            raise pa.ArrowInvalid("out of range")
        return column.cast(self.given_as)

    def take(self, document: dict[str, Any]) -> Any:
        value = self._within(document) if self._nested else document.get(self.name)
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
    """The member as JSON text."""
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
        return with_scale(value)
    if not isinstance(value, str):
        raise DoesNotFitError("not a number")
    return _text(str(value)) if not isinstance(value, Numeral) else str.__str__(value)


def _bytes(value: Any) -> bytes:
    r"""From base64, or from hexadecimal digits after ``\x`` as PostgreSQL writes them: base64 has no ``\``."""
    text = _text(value)
    try:
        if text.startswith("\\x"):
            return binascii.unhexlify(text[2:])
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise DoesNotFitError("not base64") from error
