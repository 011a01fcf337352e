"""Cast a column to its PostgreSQL type: all rows at once, and in halves if that fails. No value is rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast import arrays, textual
from epochline.arrow.cast.numbers import to_bare_numeric, to_boolean, to_float, to_integer, to_numeric
from epochline.arrow.cast.reasons import DoesNotFitError, marked
from epochline.arrow.cast.temporal import to_date, to_time, to_timestamp
from epochline.arrow.cast.types import arrow_type
from epochline.declare.columns import INTEGERS, ColumnType, parse_type
from epochline.errors import ColumnMismatchError

Convert = Callable[[pa.Array, ColumnType], pa.Array]

_SHOWN = 40
_TEXT = parse_type("text")


@dataclass(slots=True)
class Cast:
    """A cast column. ``problems`` gives the reason per row that could not be cast; such a row is NULL in ``array``."""

    array: pa.Array
    problems: dict[int, str] = field(default_factory=dict)


def cast_column(name: str, array: pa.Array, kind: ColumnType) -> Cast:
    """Cast a column; reasons name it. Raises `ColumnMismatchError` if the array's type cannot be cast to ``kind``."""
    plain = _plain(array)
    target = arrow_type(kind)
    if pa.types.is_null(plain.type):
        return Cast(pa.array([None] * len(plain), target))
    if kind.element is not None and arrays.is_list(plain.type):
        return cast_elements(name, *arrays.from_lists(plain), kind.element)
    if kind.element is not None and (pa.types.is_string(plain.type) or pa.types.is_binary(plain.type)):
        return _cast_json_arrays(name, plain, kind)
    convert = _converter(kind)
    try:
        return _cast_pieces(name, plain, kind, convert)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ColumnMismatchError(
            f"column {name}: Arrow's {array.type} cannot be cast to {kind} ({target}); convert it in your function"
        ) from error


def cast_elements(name: str, trees: Sequence[arrays.Tree], elements: pa.Array, kind: ColumnType) -> Cast:
    """Cast all rows' elements and write each array as JSON, from one tree per row. Raises as `cast_column`."""
    cast = cast_column(name, elements, kind)
    in_json = arrays.in_json(cast.array, kind)
    texts: list[str | None] = []
    problems: dict[int, str] = {}
    for row, tree in enumerate(trees):
        try:
            arrays.check_shape(tree)
        except DoesNotFitError as error:
            problems[row] = f"{name}: the value does not fit {kind}[] ({error})"
        bad = next((leaf for leaf in arrays.leaves(tree) if leaf in cast.problems), None) if cast.problems else None
        if bad is not None:
            problems.setdefault(row, cast.problems[bad])
        texts.append(None if tree is None or row in problems else arrays.joined(tree, in_json))
    return Cast(pa.array(texts, pa.string()), problems)


def _cast_json_arrays(name: str, array: pa.Array, kind: ColumnType) -> Cast:
    element = kind.element or kind
    as_text = cast_column(name, array, _TEXT)
    trees: list[arrays.Tree] = []
    elements: list[Any] = []
    problems = dict(as_text.problems)
    for row, text in enumerate(as_text.array.to_pylist()):
        try:
            trees.append(None if text is None else arrays.read_array(text, elements, element))
        except DoesNotFitError as error:
            problems[row] = _reason(name, array.slice(row, 1), kind, error)
            trees.append(None)
    carried = pa.binary() if element.name == "bytea" else pa.string()
    cast = cast_elements(name, trees, pa.array(elements, carried), element)
    return Cast(cast.array, cast.problems | problems)


def _plain(array: pa.Array) -> pa.Array:
    """The array with one Arrow type per kind of value: no dictionaries, no large or fixed-size variants."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    return array


def _to_bytes(array: pa.Array, kind: ColumnType) -> pa.Array:
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        raise pa.ArrowTypeError("no bytes")
    return array.cast(pa.binary())


def _no_array(array: pa.Array, kind: ColumnType) -> pa.Array:
    raise pa.ArrowTypeError("no array")


_CONVERTERS: dict[str, Convert] = {
    "boolean": to_boolean,
    **dict.fromkeys(INTEGERS, to_integer),
    **dict.fromkeys(("real", "double precision"), to_float),
    "bytea": _to_bytes,
    "date": to_date,
    **dict.fromkeys(("timestamp with time zone", "timestamp without time zone"), to_timestamp),
    "time without time zone": to_time,
}


def _converter(kind: ColumnType) -> Convert:
    if kind.name == "numeric":
        return to_bare_numeric if kind.precision is None else to_numeric
    if kind.element is not None:
        return _no_array
    return _CONVERTERS.get(kind.name) or textual.converter(kind)


def _cast_pieces(name: str, array: pa.Array, kind: ColumnType, convert: Convert) -> Cast:
    """Cast the whole array, or its halves if that fails. A single row that fails becomes a problem."""
    try:
        return Cast(convert(array, kind))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise
    except (pa.ArrowInvalid, ValueError) as error:
        if len(array) == 1:
            return Cast(pa.array([None], arrow_type(kind)), {0: _reason(name, array, kind, error)})
    middle = len(array) // 2
    left = _cast_pieces(name, array.slice(0, middle), kind, convert)
    right = _cast_pieces(name, array.slice(middle), kind, convert)
    problems = left.problems | {middle + row: reason for row, reason in right.problems.items()}
    return Cast(pa.concat_arrays([left.array, right.array]), problems)


def _reason(name: str, array: pa.Array, kind: ColumnType, error: Exception) -> str:
    why = f" ({error})" if isinstance(error, DoesNotFitError) else ""
    return f"{name}: {marked(shown(array[0]))} does not fit {kind}{why}"


def shown(scalar: pa.Scalar) -> str:
    """A value as a reason shows it: short and printable."""
    kind = scalar.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        raw = scalar.cast(pa.binary()).as_py()
        text = repr(raw[: _SHOWN * 4].decode("utf-8", "backslashreplace"))
    else:
        text = str(scalar.cast(pa.string())) if not pa.types.is_nested(kind) else str(scalar)
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def null_rows(array: pa.Array) -> Iterable[int]:
    """Indices of the rows that are NULL."""
    if array.null_count == 0:
        return ()
    rows: list[int] = pc.indices_nonzero(array.is_null()).to_pylist()
    return rows
