"""Read JSON records: all at once by Arrow's reader and a cutter if they can separate them, else one by one.

The reader of single records defines the result. The others are used only for values on which all agree, so that a
record gives the same values whatever other records are in its batch (ADR 0056).
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from epochline.arrow.cast.jsontext import may_be_too_deep, read_json
from epochline.arrow.cast.reasons import DoesNotFitError, any_true
from epochline.arrow.cast.types import byte_layout
from epochline.arrow.formats.json_cut import Cutter, without_spaces
from epochline.arrow.formats.json_members import Member, most_digits
from epochline.declare.columns import ColumnType

# A failing batch with fewer records is read one by one instead of being halved again.
_ONE_BY_ONE = 256


class JsonReader:
    """Reads JSON objects into columns, which `cast_column` then casts. `Member` says what each argument holds.

    With ``keeps_texts``, a ``jsonb`` has the text of the record: only where PostgreSQL alone sees it (ADR 0056).
    """

    def __init__(
        self,
        columns: Mapping[str, ColumnType],
        steps: Mapping[str, tuple[str, ...]],
        units: Mapping[str, str] = MappingProxyType({}),
        scales: Mapping[str, int] = MappingProxyType({}),
        *,
        keeps_texts: bool = False,
    ) -> None:
        self._members = {
            name: Member(name, kind, steps[name], units.get(name), scales.get(name), keeps_text=keeps_texts)
            for name, kind in columns.items()
        }
        read_as: dict[tuple[str, ...], pa.DataType] = {}
        # Arrow's reader gives one type for each value, so two columns of one value must agree on it.
        self._at_once = all(
            read_as.setdefault(member.steps, member.read_as) == member.read_as
            for member in self._members.values()
            if member.at_once
        )
        self._schema = _nested(read_as) if self._at_once else None
        self._strange_number = _strange_number(read_as.values())
        self._cut = [member for member in self._members.values() if not member.at_once]
        self._cutter: Cutter | None = None
        with suppress(ValueError):
            self._cutter = Cutter([member.steps for member in self._cut])

    def read(self, texts: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """The columns, and the reason for each row that is not such an object. ``texts`` must not contain NULL."""
        if self._at_once and self._cutter is not None and len(texts) >= _ONE_BY_ONE:
            columns = self._read_at_once(texts, self._cutter)
            if columns is not None:
                return columns, {}
            middle = len(texts) // 2
            left, problems = self.read(texts.slice(0, middle))
            right, more = self.read(texts.slice(middle))
            problems |= {middle + row: reason for row, reason in more.items()}
            return [joined(pair) for pair in zip(left, right, strict=True)], problems
        documents: list[Any] = texts.to_pylist()
        return self.read_each(documents)

    def _read_at_once(self, texts: pa.Array, cutter: Cutter) -> list[pa.Array] | None:
        """Read all records with Arrow's reader and the cutter. Returns None unless each text certainly gave one row.

        Every text begins with ``{`` and ends with ``}``. Inside a document no ``{`` can directly follow a ``}``, and a
        string cannot contain the line feed between two texts. So no document spans two texts, and each text gives at
        least one row. If there are as many rows as texts, each text gave exactly one.
        """
        if not _is_plain(texts):
            return None
        lines = pc.binary_join_element_wise(texts, "", "\n")
        data: Any = lines.buffers()[2]
        # Arrow's reader takes NaN and Infinity, the cutter refuses them.
        whole = b"" if self._cut else memoryview(data).tobytes()
        must_be_cut = bool(self._cut) or any(word in whole for word in _NOT_JSON)
        try:
            cut = cutter.lines(data, len(texts)) if must_be_cut else []
            given = self._read_by_arrow(data, len(texts)) if self._schema else {}
            if cut is None or given is None:
                return None
            given |= {member.name: member.cut(values) for member, values in zip(self._cut, cut, strict=True)}
        except (pa.ArrowInvalid, DoesNotFitError):
            return None
        return [given[name] for name in self._members]

    def _read_by_arrow(self, data: Any, count: int) -> dict[str, pa.Array] | None:
        if self._strange_number and _is_in(data, self._strange_number):
            return None
        source: Any = pa.BufferReader(data)  # the stubs know only files of Python
        table = pyarrow.json.read_json(
            source,
            pyarrow.json.ReadOptions(use_threads=False, block_size=max(data.size + 1, 1024)),
            pyarrow.json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != count:
            return None
        members = (member for member in self._members.values() if member.at_once)
        return {member.name: member.given(_column(table, member.steps)) for member in members}

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
                self._keep_texts(text, taken)
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

    def _keep_texts(self, text: str, taken: list[Any]) -> None:
        """Replace documents by their texts in the record, as they are read all at once, if the cutter takes it."""
        kept = [at for at, member in enumerate(self._members.values()) if member.keeps_text and taken[at] is not None]
        cut = self._cutter.one(text) if kept and self._cutter is not None else None
        if cut is not None:
            texts = dict(zip((member.name for member in self._cut), cut, strict=True))
            names = list(self._members)
            for at in kept:
                taken[at] = without_spaces(texts[names[at]])


def joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """Join columns of one member: decimals become texts where others are texts, because some were read one by one."""
    if any(pa.types.is_string(array.type) for array in arrays):
        arrays = [array.cast(pa.string()) for array in arrays]
    return pa.concat_arrays(arrays)


_NOT_JSON = (b"NaN", b"Inf")
_BRACE, _LAST_BRACE = b"{}"


def _is_plain(texts: pa.Array) -> bool:
    """Whether each text begins and ends as an object, and all are such that both readers agree on them."""
    layout = byte_layout(texts)
    starts, lengths, data = layout
    if int(lengths.min()) < 1:
        return False
    codes = np.frombuffer(data, np.uint8)
    if not ((codes[starts] == _BRACE).all() and (codes[starts + lengths - 1] == _LAST_BRACE).all()):
        return False
    return not may_be_too_deep(layout).any()


def _is_in(data: pa.Buffer, pattern: str) -> bool:
    """Whether RE2 finds a pattern in bytes: in all at once, which takes half of the time of a search row by row."""
    ends = pa.array([0, data.size], pa.int64()).buffers()[1]
    return any_true(pc.match_substring_regex(pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, data]), pattern))


def _nested(read_as: Mapping[tuple[str, ...], pa.DataType]) -> pa.Schema:
    fields: dict[str, pa.DataType] = {}
    inner: dict[str, dict[tuple[str, ...], pa.DataType]] = {}
    for (name, *rest), kind in read_as.items():
        if rest:
            inner.setdefault(name, {})[tuple(rest)] = kind
        else:
            fields[name] = kind
    return pa.schema(fields | {name: pa.struct(list(_nested(below))) for name, below in inner.items()})


def _column(table: pa.Table, steps: tuple[str, ...]) -> pa.Array:
    """A column of the table, or of the structs in it. It is NULL where a struct is NULL."""
    column: pa.Array = table.column(steps[0]).combine_chunks()
    for step in steps[1:]:
        column = pc.struct_field(column, column.type.get_field_index(step))
    return column


def _strange_number(types: Collection[pa.DataType]) -> str | None:
    """A pattern of numbers that Arrow's reader turns into others in silence; None if no column has a fraction."""
    digits = [most_digits(kind) for kind in types if pa.types.is_decimal(kind)]
    if digits:
        most, exponent = max(min(digits), 1), "[+-]?0*[1-9][0-9]"
    elif any(map(pa.types.is_floating, types)):
        most, exponent = 300, "-0*[1-9][0-9]{2}"
    else:
        return None
    return rf"[:,\[]\s*-?[0-9.]+(?:[0-9.]{{{most}}}|[eE]{exponent})"
