"""Spark's SQL as sqlglot reads and writes it, so that Spark plans what is written as it plans what was read. Pure.

sqlglot takes a third of a second to import, so only a declaration with a query imports it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from epochline.declare.sql_functions import AGGREGATES

if TYPE_CHECKING:
    from sqlglot import exp


def expression(text: str) -> exp.Expr:
    """Parse one expression of Spark SQL."""
    import sqlglot

    parsed: exp.Expr = sqlglot.parse_one(text, dialect=dialect())
    return parsed


def sql_of(tree: exp.Expr) -> str:
    """Write a tree as Spark SQL, with every name quoted."""
    return str(tree.sql(dialect=dialect(), identify=True, comments=False))


@cache
def dialect() -> Any:
    """Spark's dialect, in which ``window`` is the name of a function."""
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark
    from sqlglot.generators.spark import SparkGenerator
    from sqlglot.parsers.spark import SparkParser

    class Query(Spark):
        class Tokenizer(Spark.Tokenizer):
            KEYWORDS = {word: kind for word, kind in Spark.Tokenizer.KEYWORDS.items() if word != "WINDOW"}

        class Parser(SparkParser):
            # sqlglot writes the functions that it knows in its own way; it keeps the others as they were written.
            FUNCTIONS = {name: make for name, make in SparkParser.FUNCTIONS.items() if name.lower() in AGGREGATES}
            FUNCTION_PARSERS = {
                name: parse for name, parse in SparkParser.FUNCTION_PARSERS.items() if name in ("CAST", "TRY_CAST")
            }

        class Generator(SparkGenerator):
            def not_sql(self, expression: exp.Not) -> str:
                # sqlglot writes NOT x IS NULL, which Spark plans otherwise than x IS NOT NULL.
                negated = expression.this
                if isinstance(negated, exp.Is):
                    return f"{self.sql(negated, 'this')} IS NOT {self.sql(negated, 'expression')}"
                return super().not_sql(expression)

    return Query
