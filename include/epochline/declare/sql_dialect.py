"""Spark's SQL in a query over windows: how sqlglot reads and writes it, and which functions may be called. Pure.

These functions are those of Spark SQL whose result depends on their arguments alone, so that every try of an epoch and
every division into epochs gives the same result. Floating-point functions whose last digit may differ between machines
are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

WINDOWS = frozenset({"window", "session_window"})
AGGREGATES = frozenset({"count", "count_if", "sum", "min", "max", "avg", "bool_and", "bool_or", "every"})

ROW_WISE_BY_SUBJECT = {
    "numbers": "abs ceil ceiling floor round bround sign signum mod pmod greatest least try_add try_subtract"
    " try_multiply try_divide",
    "conditions": "coalesce nullif ifnull nvl nvl2 if isnull isnotnull isnan nanvl",
    "text": "upper lower ucase lcase trim ltrim rtrim btrim length char_length character_length substring substr left"
    " right concat concat_ws replace translate split_part lpad rpad reverse repeat initcap instr startswith endswith"
    " contains regexp_extract regexp_replace regexp_like ascii md5 sha1 sha2 crc32 hex get_json_object",
    "time": "year quarter month day dayofmonth dayofweek dayofyear weekday weekofyear hour minute second date_trunc"
    " trunc date_add date_sub datediff last_day to_date to_timestamp unix_seconds unix_millis unix_micros"
    " timestamp_seconds timestamp_millis timestamp_micros",
    "types": "cast try_cast",
}
ROW_WISE = frozenset(name for names in ROW_WISE_BY_SUBJECT.values() for name in names.split())

_SQL = (
    "select where having by and or not in between like rlike is case when then else filter from as distinct div"
    " decimal numeric dec varchar char over exists on using within group union all rollup cube"
)
_BEFORE_A_PARENTHESIS = frozenset({*_SQL.split(), "grouping sets"})
"""Words that are no function although a parenthesis may follow; the check of the tree judges them."""

_ORDER = "its result depends on the order of the records"
_TRIES = "it gives another result at each try"
_FLOATS = "it is computed in floating point, where the result depends on the order of the records"
_EVERY_RECORD = "it needs every record of a window at once, and an epoch keeps only partial results"

_REASONS = {
    _ORDER: "first first_value last last_value any_value collect_list collect_set array_agg listagg string_agg max_by"
    " min_by",
    _TRIES: "rand random randn uuid shuffle monotonically_increasing_id spark_partition_id input_file_name now curdate"
    " current_date current_time current_timestamp localtimestamp unix_timestamp current_user session_user user"
    " current_timezone current_catalog current_database current_schema version",
    _FLOATS: "mean std stddev stddev_pop stddev_samp variance var_pop var_samp corr covar_pop covar_samp skewness"
    " kurtosis approx_count_distinct approx_percentile percentile_approx regr_slope regr_intercept regr_r2",
    _EVERY_RECORD: "median mode percentile percentile_cont percentile_disc histogram_numeric",
    "it belongs to OVER, which needs every record of a window at once": "row_number rank dense_rank percent_rank ntile"
    " lag lead cume_dist nth_value",
    "it makes several rows of one; use explode= of the pipeline": "explode explode_outer posexplode inline stack",
}
_WHY_NOT = {name: reason for reason, names in _REASONS.items() for name in names.split()}

_WITHOUT_PARENTHESES = frozenset(name for name in _REASONS[_TRIES].split() if name.startswith(("current_", "local")))
"""Functions that Spark SQL calls without parentheses too."""

_TYPED = frozenset({"date", "timestamp", "timestamp_ltz", "timestamp_ntz"})
_SUFFIXES = frozenset({"y", "s", "l", "f", "d", "bd"})

Word = tuple[str, str]
"""A word of SQL, and sqlglot's name for its kind."""


def check_words(words: Sequence[Word]) -> None:
    """Raise ``ValueError`` for a function that no query may call, or a literal that sqlglot misreads.

    The words are checked as they were written, because a tree knows synonyms by one name.
    """
    end: Word = ("", "")
    for (word, kind), (after, next_kind), (then, _) in zip(
        words, [*words[1:], end], [*words[2:], end, end], strict=True
    ):
        if kind == "STRING" and next_kind == "STRING":
            raise ValueError(f"'{word}''{after}': write one text between double quotes")
        if kind == "NUMBER" and next_kind == "DCOLON" and then.lower() in _SUFFIXES:
            raise ValueError(f"{word}{then}: write a CAST, such as CAST({word} AS double)")
        if word.lower() in _TYPED and next_kind == "STRING":
            raise ValueError(f"{word} '{after}': write CAST('{after}' AS {word})")
        if kind in ("STRING", "NUMBER") or not re.match(r"[A-Za-z_]", word):
            continue
        called = next_kind == "L_PAREN" and word.lower() not in _BEFORE_A_PARENTHESIS
        if called or word.lower() in _WITHOUT_PARENTHESES:
            _check_function(word)


def _check_function(name: str) -> None:
    if name.lower() in _WHY_NOT:
        raise ValueError(f"{name}() is refused: {_WHY_NOT[name.lower()]}")
    if name.lower() not in WINDOWS | AGGREGATES | ROW_WISE:
        raise ValueError(
            f"{name}() is not among the functions that a query may call; compute it in parse, as a column of the record"
        )


class Query(Spark):
    """Spark's dialect, in which ``window`` is the name of a function."""

    class Tokenizer(Spark.Tokenizer):
        """Reads WINDOW as a name."""

        KEYWORDS = {word: kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if word != "WINDOW"}

    class Parser(SparkParser):
        """Keeps functions as they were written; sqlglot would write those that it knows in its own way."""

        FUNCTIONS = {name: make for name, make in SparkParser.FUNCTIONS.items() if name.lower() in AGGREGATES}
        FUNCTION_PARSERS = {
            name: parse for name, parse in SparkParser.FUNCTION_PARSERS.items() if name in ("CAST", "TRY_CAST")
        }

    class Generator(SparkGenerator):
        """Writes x IS NOT NULL, which Spark plans otherwise than NOT x IS NULL."""

        def not_sql(self, expression: exp.Not) -> str:
            negated = expression.this
            if isinstance(negated, exp.Is):
                return f"{self.sql(negated, 'this')} IS NOT {self.sql(negated, 'expression')}"
            return super().not_sql(expression)


def expression(text: str) -> exp.Expr:
    """Parse one expression of Spark SQL."""
    parsed: exp.Expr = sqlglot.parse_one(text, dialect=Query)
    return parsed


def sql_of(tree: exp.Expr) -> str:
    """Write a tree as Spark SQL, with every name quoted."""
    return str(tree.sql(dialect=Query, identify=True, comments=False))
