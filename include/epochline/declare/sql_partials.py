"""Splits a query over windows into partial aggregates, which merge over epochs, and expressions over them. Pure.

Every aggregate becomes ``count``, ``sum``, ``min`` or ``max`` of one column, because open windows merge these. The
column is computed from each record beforehand. ``bool_and`` is the ``min`` of a boolean. ``count_if(p)`` counts the
records for which ``p`` is true. ``avg`` is a sum and a count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, count

from sqlglot import exp

from epochline.declare.columns import END, INTEGERS, START, ColumnType, parse_type
from epochline.declare.event_time import Session
from epochline.declare.sql_dialect import expression, sql_of
from epochline.declare.sql_query import TOUCH, GroupedQuery, columns_of

_WIDEST = 38
_SUM_GROWS_BY = 10
"""Digits that Spark adds to a decimal for its sum."""
_AVG_GROWS_BY = 4
"""Digits that Spark adds to a decimal, before and after the point, for its average."""
_MOST_DIGITS_OF_AVG = 12
"""Up to here a sum divided by a count of less than 10^12 is rounded as Spark rounds ``avg``."""

_ORDERED = frozenset({
    "boolean", "date", "double precision", "numeric", "real", "text", "timestamp with time zone",
    "timestamp without time zone", *INTEGERS,
})  # fmt: skip
_CAST = {
    "SMALLINT": "smallint", "INT": "integer", "BIGINT": "bigint", "FLOAT": "real", "DOUBLE": "double precision",
    "TEXT": "text", "BOOLEAN": "boolean", "DATE": "date", "TIMESTAMP": "timestamptz", "TIMESTAMPTZ": "timestamptz",
    "TIMESTAMPLTZ": "timestamptz", "TIMESTAMPNTZ": "timestamp",
}  # fmt: skip
_FUNCTIONS = {
    "Count": "count", "CountIf": "count_if", "Sum": "sum", "Min": "min", "Max": "max", "Avg": "avg",
    "LogicalAnd": "bool_and", "LogicalOr": "bool_or",
}  # fmt: skip


@dataclass(kw_only=True)
class Split:
    """A query in parts, as `split` fills them."""

    query: GroupedQuery
    record: Mapping[str, str]
    reserved: frozenset[str]
    where: str | None = None
    """Spark SQL over a record, or None."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Spark SQL over a record, by the column that is added to it."""
    aggregates: dict[str, str] = field(default_factory=dict)
    """``count``, ``sum``, ``min`` or ``max`` of such a column, by column of the open windows."""
    types: dict[str, str] = field(default_factory=dict)
    """PostgreSQL types of these columns."""
    results: dict[str, str] = field(default_factory=dict)
    """Spark SQL over an open window, by result column."""
    having: str | None = None

    def over_partials(self, tree: exp.Expr, name: str | None) -> str:
        """Replace every aggregate by what it is of the partial results; a lone aggregate's partial has the name."""
        root = exp.Paren(this=tree.copy())
        calls = list(_outermost_calls(root))
        inside = {id(node) for call in calls for node in call.walk()}
        for column, called in list(columns_of(root)):
            if id(column) in inside:
                continue
            if called not in (*self.query.key, START, END):
                raise ValueError(f"{column.sql(dialect='spark')} is neither in GROUP BY nor in an aggregate")
            column.replace(self._end() if called == END else exp.column(called, quoted=True))
        for call in calls:
            call.replace(expression(self._merged(call, name if call is root.this else None)))
        return sql_of(root.this)

    def _end(self) -> exp.Expr:
        touch = f"{TOUCH // timedelta(microseconds=1)} MICROSECOND"
        return expression(f"(`{END}` - INTERVAL {touch})" if isinstance(self.query.window, Session) else f"`{END}`")

    def _merged(self, call: exp.Expr, name: str | None) -> str:
        function, argument, only_if = _call(call)
        shown = call.sql(dialect="spark")
        for part in filter(None, (argument, only_if)):
            _check_row_wise(part, self.record, inside=shown)
        sql = None if argument is None else sql_of(argument)
        condition = None if only_if is None else sql_of(only_if)
        if function == "count_if":
            function, sql, condition = "count", f"CASE WHEN {sql} THEN 1 END", condition
        if condition is not None:
            sql = f"CASE WHEN {condition} THEN {'1' if sql is None else sql} END"
        if function == "count":
            return self._add(name, "count", sql, "bigint")
        if function in ("bool_and", "bool_or"):
            return self._add(name, "min" if function == "bool_and" else "max", sql, "boolean")
        kind = self._type(argument, shown)
        if function == "sum":
            return self._add(name, "sum", sql, _sum_type(kind, shown))
        if function == "avg":
            total = self._add(None, "sum", sql, _avg_type(kind, shown))
            number = self._add(None, "count", sql, "bigint")
            digits, scale = (kind.precision or 0) + _AVG_GROWS_BY, (kind.scale or 0) + _AVG_GROWS_BY
            return f"CAST({total} / {number} AS DECIMAL({digits}, {scale}))"
        if kind.name not in _ORDERED:
            raise ValueError(f"{shown}: Spark orders {kind} otherwise than PostgreSQL; CAST it to another type")
        return self._add(name, function, sql, str(kind))

    def _add(self, name: str | None, function: str, argument: str | None, kind: str) -> str:
        """Add a partial aggregate unless it is there, and return its name, quoted; without a name it gets a new one."""
        column = "*"
        if argument is not None:
            column = next((column for column, text in self.arguments.items() if text == argument), "")
            column = column or f"_argument_{len(self.arguments) + 1}"
            self.arguments[column] = argument
        call, kind = f"{function}({column})", str(parse_type(kind))
        alias = next((key for key, same in self.aggregates.items() if (same, self.types[key]) == (call, kind)), None)
        if alias is None:
            names = chain([name] if name else [], (f"partial_{number}" for number in count(1)))
            alias = next(filter(self._is_free, names))
            self.aggregates[alias], self.types[alias] = call, kind
        return f"`{alias.replace('`', '``')}`"

    def _is_free(self, name: str) -> bool:
        return name not in self.reserved and name not in self.aggregates and not name.startswith("_")

    def _type(self, argument: exp.Expr | None, shown: str) -> ColumnType:
        while isinstance(argument, exp.Paren):
            argument = argument.this
        if isinstance(argument, exp.Column):
            kind = parse_type(self.record[argument.name])
            return parse_type("text") if kind.name == "character varying" else kind
        if isinstance(argument, exp.Cast):
            to = argument.to
            name = to.this.name
            if name == "DECIMAL":
                digits = [int(number.name) for number in to.expressions]
                return parse_type("numeric({},{})".format(*[*digits, *(10, 0)[len(digits) :]]))
            if name in _CAST:
                return parse_type(_CAST[name])
        raise ValueError(
            f"{shown}: the type of its partial results is unknown; aggregate a column of the record, or CAST the value,"
            " such as sum(CAST(price * pieces AS decimal(20,2)))"
        )


def split(query: GroupedQuery, record: Mapping[str, str], reserved: frozenset[str]) -> Split:
    """Split a query over records with these columns; no partial aggregate gets a reserved name."""
    parts = Split(query=query, record=record, reserved=reserved | {*record, *query.key})
    where, having = query.tree.args.get("where"), query.tree.args.get("having")
    if where is not None:
        _check_row_wise(where.this, record)
        parts.where = sql_of(where.this)
    for name, tree in query.results.items():
        parts.results[name] = parts.over_partials(tree, name)
    if having is not None:
        parts.having = parts.over_partials(having.this, None)
    return parts


def _outermost_calls(node: exp.Expr) -> Iterator[exp.Expr]:
    """The aggregates in a tree; `_check_row_wise` refuses an aggregate inside of another."""
    if _function(node) is not None:
        yield node
        return
    for child in node.iter_expressions():
        yield from _outermost_calls(child)


def _function(node: exp.Expr) -> str | None:
    """The aggregate function that a node calls, with or without FILTER; None for any other node."""
    if isinstance(node, exp.Filter):
        return _function(node.this)
    if isinstance(node, exp.Anonymous):
        return "bool_and" if str(node.this).lower() == "every" else None
    return _FUNCTIONS.get(type(node).__name__)


def _call(call: exp.Expr) -> tuple[str, exp.Expr | None, exp.Expr | None]:
    """Function, argument and condition of an aggregate; the argument of ``count(*)`` is None."""
    function, condition = _function(call), None
    if isinstance(call, exp.Filter):
        call, condition = call.this, call.expression.this
    arguments = call.expressions if isinstance(call, exp.Anonymous) else [call.this, *call.expressions]
    if function is None or len(arguments) != 1 or arguments[0] is None:
        raise ValueError(f"{call.sql(dialect='spark')}: an aggregate takes one argument")
    (argument,) = arguments
    if isinstance(argument, exp.Star):
        argument = None
    return function, argument, condition


def _check_row_wise(tree: exp.Expr, record: Mapping[str, str], inside: str = "WHERE") -> None:
    for node in tree.walk():
        if _function(node) is not None:
            raise ValueError(f"{inside}: {node.sql(dialect='spark')} is an aggregate inside of it")
    for column, name in columns_of(tree):
        if column.table or name not in record:
            raise ValueError(f"{inside}: {column.sql(dialect='spark')} is not a column of the record")


def _sum_type(kind: ColumnType, shown: str) -> str:
    if kind.name in INTEGERS:
        return "bigint"
    if kind.name == "numeric" and kind.precision is not None:
        return f"numeric({min(_WIDEST, kind.precision + _SUM_GROWS_BY)},{kind.scale or 0})"
    if kind.name in ("real", "double precision"):
        raise ValueError(
            f"{shown}: a sum of {kind} depends on the order of the records; sum(CAST(… AS decimal(20,6))) does not"
        )
    raise ValueError(f"{shown}: {kind} has no exact sum; CAST it to bigint or to decimal(p,s)")


def _avg_type(kind: ColumnType, shown: str) -> str:
    if kind.name != "numeric" or kind.precision is None:
        raise ValueError(
            f"{shown}: Spark's average of {kind} is a floating point number, which depends on the order of the records;"
            " write avg(CAST(… AS decimal(12,2)))"
        )
    if kind.precision > _MOST_DIGITS_OF_AVG:
        raise ValueError(
            f"{shown}: avg is exact up to {_MOST_DIGITS_OF_AVG} digits, and {kind} has more; write sum(…) / count(…)"
        )
    return _sum_type(kind, shown)
