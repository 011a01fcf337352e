"""Values of every type of a column: those that are stored, as PostgreSQL shows them, and those that make a bad record."""

from typing import Any

import pyarrow as pa

LINEAGE = "_topic text, _partition int, _offset bigint, _row int, _epoch bigint"
TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'very \"ok\"');"
    "CREATE DOMAIN price AS numeric(6,2) CHECK (VALUE >= 0);"
    "CREATE DOMAIN cheap AS price CHECK (VALUE < 100);"
    "CREATE DOMAIN email AS text CHECK (VALUE LIKE '%@%');"
    "CREATE DOMAIN code AS char(3);"
    "CREATE DOMAIN moods AS mood[];"
    "CREATE DOMAIN known AS text NOT NULL CHECK (VALUE <> '');"
    "CREATE DOMAIN cash AS money CHECK (VALUE > 0::money);"
    "CREATE TYPE pair AS (a integer, b text, seen timestamp);"
    "CREATE TYPE hours AS RANGE (subtype = time);"
)
# By type: the record's type, values with what PostgreSQL shows of them, and values that make a bad record.
MATRIX: dict[str, tuple[str, list[tuple[Any, str | None]], list[Any]]] = {
    "mood": ("text", [("ok", "ok")], ["happy"]),
    "price": ("numeric", [(1.5, "1.50"), ("9999.99", "9999.99"), (None, None)], [1.555, -1, "10000"]),
    "cheap": ("text", [("99.99", "99.99")], ["100", "99.995", "-1"]),
    "email": ("text", [("a@b", "a@b")], ["ab"]),
    "code": ("text", [("abc", "abc"), ("ab", "ab")], ["abcd", "abc "]),
    "cash": ("numeric", [("12.34", "$12.34")], ["0", "1.005"]),
    "integer[]": ("int[]", [
        ([1, None, 3], "{1,NULL,3}"), ([], "{}"), ([[1, 2], [3, 4]], "{{1,2},{3,4}}"), (None, None),
    ], [[1.5], ["x"], [2**31], [[1], [2, 3]], [[1], 2], [[]], "{1}", 1, {"a": 1}, [[[[[[[1]]]]]]], [True]]),
    "text[]": ("text[]", [
        (["a", "", "NULL", None, 'q"u\\o,t{e}', "ž 🐎"], '{a,"","NULL",NULL,"q\\"u\\\\o,t{e}","ž 🐎"}'),
    ], [["a\0"], [{}], ["\ud800"]]),
    "numeric(4,2)[]": ("numeric(4,2)[]", [([1.5, "2.25"], "{1.50,2.25}")], [[1.555], [100], ["NaN"]]),
    "double precision[]": ("float8[]", [([0.1, "NaN", "-Infinity"], "{0.1,NaN,-Infinity}")], [["x"], [True]]),
    "timestamp(3)[]": ("timestamp(3)[]", [
        (["2024-01-01T00:00:00.123"], '{"2024-01-01 00:00:00.123"}'),
    ], [["2024-01-01T00:00:00.1234"]]),
    "bytea[]": ("bytea[]", [(["AP8=", None, ""], '{"\\\\x00ff",NULL,"\\\\x"}')], [["%"]]),
    "jsonb[]": ("jsonb[]", [([{"a": [1, 2.50]}, [1], "x", None], '{"{\\"a\\": [1, 2.5]}",[1],"\\"x\\"",NULL}')], []),
    "mood[]": ("text[]", [(["ok", None, 'very "ok"'], '{ok,NULL,"very \\"ok\\""}')], [["happy"]]),
    "moods": ("text[]", [([["sad"], ["ok"]], "{{sad},{ok}}")], [["ok", "happy"]]),
    "price[]": ("numeric[]", [([1, "2.5"], "{1.00,2.50}")], [[-1], [1.555]]),
    "char(2)[]": ("text[]", [(["a", "bc"], '{"a ",bc}')], [["abc"], ["ab", "bc "], ["a", "bc  "]]),
    "money[]": ("numeric[]", [([1, "2.50"], "{$1.00,$2.50}")], [[1, 1.005]]),
    "int4range[]": ("text[]", [(["[1,3]", None], '{"[1,4)",NULL}')], [["x"]]),
    "timestamp(3)": ("timestamp(3)", [("2024-01-01T00:00:00.123000", "2024-01-01 00:00:00.123")], [
        "2024-01-01T00:00:00.1234", "2024-01-01T00:00:00.999999",
    ]),
    "timestamptz(0)": ("timestamptz", [("2024-01-01T00:00:00Z", "2024-01-01 00:00:00+00")], ["2024-01-01T00:00:00.5Z"]),
    "time(3)": ("time", [("09:30:00.25", "09:30:00.25")], ["09:30:00.0001"]),
    "interval(1)": ("text", [("1 day 00:00:01.5", "1 day 00:00:01.5")], ["1.55 seconds", "soon"]),
    "interval day to hour": ("text", [("1 day 02:00:00", "1 day 02:00:00")], ["1 day 02:03:00"]),
    "timetz": ("text", [("09:30:00+02", "09:30:00+02"), ("24:00:00Z", "24:00:00+00")], [
        "09:30:00.1234567+02", "noon o'clock", "2024-01-01 09:30:00+02", "now", "09:30:60+02",
    ]),
    "timetz(0)": ("timetz(0)", [("09:30:00+02", "09:30:00+02")], ["09:30:00.4+02"]),
    "char(5)": ("char(5)", [("ab", "ab"), ("ab   ", "ab"), ("žžžžž", "žžžžž"), (12, "12")], ["abcdef", "abcde ", "a\0"]),
    "bpchar": ("text", [("ab", "ab")], []),
    "name": ("text", [("x" * 63, "x" * 63)], ["x" * 64]),
    '"char"': ("text", [("x", "x")], ["xy"]),
    "bit(4)": ("bit(4)", [("1010", "1010")], ["101", "10101", "1012"]),
    "varbit(4)": ("text", [("101", "101")], ["10101"]),
    "numeric(90,2)": ("numeric", [("1.5", "1.50")], ["1.555"]),
    "money": ("money", [("12.34", "$12.34"), (-5, "-$5.00")], ["1.005", "a dollar", "1e30"]),
    "int4range": ("int4range", [("[1,3)", "[1,3)"), ("empty", "empty")], ["[3,1)", "x"]),
    "tstzrange": ("text", [
        ("[2024-01-01 00:00:00+00,)", '["2024-01-01 00:00:00+00",)'),
        ('["2024-01-01T10:00:00.5+05:30", infinity]', '["2024-01-01 04:30:00.5+00",infinity]'),
        ("(,2024-06-01 10:00 Europe/Prague)", '(,"2024-06-01 08:00:00+00")'), ("[-infinity,0044-03-15 BC)", '[-infinity,"0044-03-15 00:00:00+00 BC")'),
    ], ["[2024-01-01 00:00:00.1234567+00,)", "[now,)", "[today,infinity)", "(2016-12-31 23:59:60Z,)"]),
    "tsrange": ("text", [
        ("[2024-01-01T10:00:00,2024-01-01 11:00)", '["2024-01-01 10:00:00","2024-01-01 11:00:00")'), ("empty", "empty"),
        ("[0044-03-15 BC,2024-01-01]", '["0044-03-15 00:00:00 BC","2024-01-01 00:00:00"]'),
    ], [
        "[2024-01-01 10:00:00+02,)", "[2024-01-01T10:00:00Z,)", "[,2024-01-01 10:00 Europe/Prague)", "[yesterday,)",
    ]),
    "tsmultirange": ("text", [("{}", "{}")], ["{[2024-01-01 10:00:00,2024-01-01 11:00:00+00)}"]),
    "daterange": ("text", [
        ("[2024-01-01,2024-01-05]", "[2024-01-01,2024-01-06)"), ("(,infinity)", "(,infinity)"),
    ], ["[2024-01-01 23:59,2024-02-01)", "[2024-01-01T00:00:00Z,)", "[tomorrow,)", "[2024-02-30,)"]),
    "datemultirange": ("text", [
        ("{[2024-01-01,2024-02-01), [2024-03-01,)}", "{[2024-01-01,2024-02-01),[2024-03-01,)}"),
    ], ["{[2024-01-01,2024-02-01),[2024-03-01 12:00,)}"]),
    "daterange[]": ("text[]", [
        (["[2024-01-01,2024-02-01)", None], '{"[2024-01-01,2024-02-01)",NULL}'),
    ], [["[2024-01-01,)", "[2024-01-01 12:00,)"]]),
    "hours": ("text", [("[09:30,17:00)", "[09:30:00,17:00:00)")], ["[09:30+02,)", "[2024-01-01 09:30,)", "[now,)"]),
    "nummultirange": ("text", [("{[1.5,2),[3,4)}", "{[1.5,2),[3,4)}")], ["{[1"]),
    "point": ("text", [("(1,2)", "(1,2)")], ["(1"]),
    "polygon": ("text", [("((0,0),(1,1),(1,0))", "((0,0),(1,1),(1,0))")], ["()"]),
    "tsvector": ("text", [("'a':1 'b'", "'a':1 'b'")], ["'a"]),
    "macaddr8": ("text", [("08:00:2b:01:02:03:04:05", "08:00:2b:01:02:03:04:05")], ["08:00"]),
    "oid": ("oid", [(41, "41"), ("4294967295", "4294967295")], [-1, "4294967296", "x", "041"]),
    "oid[]": ("oid[]", [([41], "{41}")], [[-1]]),
    "pair": ("text", [('(1,x,"2024-01-01 00:00:00.5")', '(1,x,"2024-01-01 00:00:00.5")')], [
        "(x,y,)", '(1,x,"2024-01-01 00:00:00.1234567")', "(1)",
    ]),
    "vector(3)": ("text", [("[1,2,3]", "[1,2,3]")], ["[1,2]", "[1,2,x]"]),
}  # fmt: skip
COLUMNS = {f"v{at}": kind for at, kind in enumerate(MATRIX)}
"""The type of each column of one table with all types."""
RECORD = {name: MATRIX[kind][0] for name, kind in COLUMNS.items()}
GOOD = [(name, value, shown) for name, kind in COLUMNS.items() for value, shown in MATRIX[kind][1]]
BAD = [(name, value) for name, kind in COLUMNS.items() for value in MATRIX[kind][2]]

# Of the types that are checked before staging: values (with their Arrow type where it matters) and how they are shown.
OWN: dict[str, list[tuple[Any, str]]] = {
    "boolean": [(True, "true"), (False, "false")],
    "smallint": [(-32768, "-32768")],
    "integer": [(2147483647, "2147483647")],
    "bigint": [(9223372036854775807, "9223372036854775807"), (-9223372036854775808, "-9223372036854775808")],
    "real": [(3.4028234663852886e38, "3.4028235e+38"), (float("nan"), "NaN"), (float("-inf"), "-Infinity")],
    "double precision": [(5e-324, "5e-324"), (float("nan"), "NaN"), (float("inf"), "Infinity"), (-0.0, "-0")],
    "numeric(38,10)": [("9" * 28 + "." + "9" * 10, "9" * 28 + "." + "9" * 10)],
    "numeric": [("0.10", "0.10"), ("1" * 131072, "1" * 131072), ("1e-16383", "0." + "0" * 16382 + "1")],
    "text": [("", ""), ("žluťoučký 🐎 \\N", "žluťoučký 🐎 \\N")],
    "character varying(3)": [("äöü", "äöü")],
    "bytea": [(b"", "\\x"), (bytes(range(256)), "\\x" + bytes(range(256)).hex())],
    "date": [
        (pa.scalar(-2440588, pa.date32()), "4714-11-24 BC"), (pa.scalar(2145042905, pa.date32()), "5874897-12-31"),
    ],
    "timestamp with time zone": [
        (pa.scalar(-210866803200000000, pa.timestamp("us", "UTC")), "4714-11-24 00:00:00+00 BC"),
        (pa.scalar(2**63 - 1, pa.timestamp("us", "UTC")), "294247-01-10 04:00:54.775807+00"),
        (pa.scalar(0, pa.timestamp("us", "UTC")), "1970-01-01 00:00:00+00"),
    ],
    "timestamp without time zone": [
        (pa.scalar(-62135596800000001, pa.timestamp("us")), "0001-12-31 23:59:59.999999 BC"),
        (pa.scalar(2**63 - 1, pa.timestamp("us")), "294247-01-10 04:00:54.775807"),
    ],
    "time without time zone": [("23:59:59.999999", "23:59:59.999999"), ("00:00", "00:00:00"), ("09:30", "09:30:00")],
    "uuid": [("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")],
    "inet": [("10.0.0.1/8", "10.0.0.1/8"), ("2001:db8::1", "2001:db8::1/128")],
    "cidr": [("10.0.0.0/8", "10.0.0.0/8")],
    "macaddr": [("08:00:2b:01:02:03", "08:00:2b:01:02:03")],
    "json": [('{"a": [1, 2.50], "a": null}', '{"a": [1, 2.50], "a": null}'), ("1e200000", "1e200000")],
    "jsonb": [('{"b": 1, "a": 2.50}', '{"a": 2.50, "b": 1}')],
    "interval": [("1 year 2 mons -3 days +04:05:06.7", "1 year 2 mons -3 days +04:05:06.7")],
}  # fmt: skip
