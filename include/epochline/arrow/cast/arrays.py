"""Cast to arrays, of one or more dimensions. An array travels as the text of a JSON array until it is copied."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from epochline.arrow.cast.calendar import spelled_out
from epochline.arrow.cast.jsontext import read_json, write_json
from epochline.arrow.cast.reasons import DoesNotFitError, require_utf8
from epochline.arrow.cast.types import hexadecimal
from epochline.declare.columns import ColumnType

Tree = list[Any] | None
"""One array: nested lists whose leaves are the numbers of its elements among all elements; None for NULL."""

_MOST_DIMENSIONS = 6
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_DOCUMENTS = ("json", "jsonb")


def from_lists(array: pa.Array) -> tuple[list[Tree], pa.Array]:
    """The trees and the elements of a column of Arrow lists of any depth."""
    elements: list[pa.Array] = []

    def numbered(level: Any) -> list[Any]:
        if not is_list(level.type):
            elements.append(level)
            return list(range(len(level)))
        # `flatten` leaves out what a NULL list or a slice does not show, so that lengths give the bounds.
        below = numbered(level.flatten())
        rows, at = [], 0
        for length in level.value_lengths().to_pylist():
            rows.append(None if length is None else below[at : at + length])
            at += length or 0
        return rows

    return numbered(array), elements[0]


def planted(rows: Any, into: list[Any], element: ColumnType, read: Callable[[Any], Any]) -> Any:
    """Read the elements of nested Python lists into a list, each by ``read`` (NULL is None), and return their tree."""

    def tree(value: Any, depth: int) -> Any:
        if isinstance(value, list) and not (depth and element.name in _DOCUMENTS):
            return [tree(member, depth + 1) for member in value]
        into.append(None if value is None else read(value))
        return len(into) - 1

    return tree(rows, 0)


def read_array(text: str, into: list[Any], element: ColumnType) -> Tree:
    """The tree of a JSON array; adds its elements to ``into``. Raises `DoesNotFitError` if it is no such array."""
    document = read_json(text)
    if not isinstance(document, list):
        raise DoesNotFitError("not an array")
    tree: Tree = planted(document, into, element, lambda value: _element(value, element))
    return tree


def _element(value: Any, kind: ColumnType) -> str | bytes:
    if kind.name in _DOCUMENTS:
        document = write_json(value)
        require_utf8(document)
        return document
    if kind.name == "boolean":
        if not isinstance(value, bool):
            raise DoesNotFitError("an element is not true or false")
        return "true" if value else "false"
    if not isinstance(value, str):
        raise DoesNotFitError("an element is not a text or a number")
    text = str.__str__(value)
    require_utf8(text)
    if kind.name == "bytea":
        return _bytes(text)
    return _NOT_FINITE.get(text, text) if kind.name in ("real", "double precision") else text


def _bytes(text: str) -> bytes:
    """From base64, or from the hexadecimal digits in which PostgreSQL writes bytes in JSON."""
    try:
        return bytes.fromhex(text[2:]) if text.startswith("\\x") else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DoesNotFitError("an element is not base64") from error


def check_shape(tree: Tree) -> None:
    """Raise `DoesNotFitError` for lists that are no array: of different lengths or depths, or empty within a list."""
    level: list[Any] = [tree]
    for dimension in range(_MOST_DIMENSIONS + 1):
        lists = [member for member in level if isinstance(member, list)]
        if not lists:
            return
        if dimension == _MOST_DIMENSIONS:
            raise DoesNotFitError(f"more than {_MOST_DIMENSIONS} dimensions")
        if len(lists) < len(level) or len({len(members) for members in lists}) > 1 or (dimension and not lists[0]):
            raise DoesNotFitError("the lists within the array differ in length or depth")
        level = [member for members in lists for member in members]


def leaves(tree: Any) -> Iterator[int]:
    """The numbers of a tree's elements."""
    if isinstance(tree, int):
        yield tree
    for member in tree if isinstance(tree, list) else ():
        yield from leaves(member)


def joined(tree: Any, elements: Sequence[str], brackets: str = "[]") -> str:
    """The text of an array: its tree, with ``elements`` as they are written, and ``brackets`` around each list."""
    if isinstance(tree, int):
        return elements[tree]
    return brackets[0] + ",".join(joined(member, elements, brackets) for member in tree) + brackets[1]


def in_json(column: pa.Array, kind: ColumnType) -> list[str]:
    """Cast elements in JSON, such that `read_array` reads them back."""
    if pa.types.is_boolean(column.type) or kind.name in _DOCUMENTS:
        return ["null" if text is None else text for text in column.cast(pa.string()).to_pylist()]
    if pa.types.is_binary(column.type):
        texts = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
        return ["null" if text is None else f'"{text}"' for text in texts]
    if pa.types.is_temporal(column.type):
        column = spelled_out(column)
    plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or kind.name == "numeric"
    names = {short: name for name, short in _NOT_FINITE.items()} if pa.types.is_floating(column.type) else {}
    return [
        "null" if text is None
        else text if plain and _JSON_NUMBER.fullmatch(text)
        else json.dumps(names.get(text, text), ensure_ascii=False)
        for text in column.cast(pa.string()).to_pylist()
    ]  # fmt: skip


def literals(column: pa.Array, kind: ColumnType) -> pa.Array:
    """Arrays in PostgreSQL's text form: ``{1,2,NULL}``."""
    element = kind.element or kind
    return pa.array([None if text is None else _literal(text, element) for text in column.to_pylist()], pa.string())


def _literal(text: str, element: ColumnType) -> str:
    values: list[Any] = []
    tree = read_array(text, values, element)
    if element.name == "bytea":
        values = hexadecimal(pa.array(values, pa.binary())).to_pylist()
    return joined(tree, ["NULL" if value is None else _quoted(str(value)) for value in values], "{}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def is_list(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a list of any layout."""
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view,
        pa.types.is_large_list_view,
    )  # fmt: skip
    return any(test(kind) for test in tests)
