"""Streaming SQL: checks that Spark reads a query as the declaration did, and computes what surrounds the windows."""

from __future__ import annotations

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from epochline.declare.columns import DELETED, END, START
from epochline.declare.windowed_query import QueryWindows
from epochline.declare.windows import Session
from epochline.errors import DeclarationError
from epochline.spark.parse_frame import quoted, spark_schema


def query_rows(rows: DataFrame, query: QueryWindows) -> DataFrame:
    """Keep the records that WHERE takes, and add the arguments of the aggregates as columns."""
    taken = rows if query.where is None else rows.where(F.expr(query.where))
    return taken.withColumns({name: F.expr(text) for name, text in query.arguments.items()})


def query_results(results: DataFrame, query: QueryWindows, *, before: Column) -> DataFrame:
    """Compute the result columns of windows, and apply HAVING.

    A window that HAVING does not take has no result. Its row is deleted if an earlier epoch may have written one.

    Args:
        results: key, window, partial aggregates and ``_deleted``, as `windowed` returns them.
        query: the compiled query.
        before: watermark of the previous epoch, or NULL.
    """
    # A sum of partial sums is wider than the sum itself.
    types = from_arrow_schema(spark_schema(query.types))
    results = results.withColumns({one.name: F.col(quoted(one.name)).cast(one.dataType) for one in types})
    if query.having is not None:
        refused = ~F.coalesce(F.expr(query.having), F.lit(False)) & ~F.col(DELETED)
        results = results.withColumn("_refused", refused)
        if not isinstance(query.window, Session):
            results = results.where(~F.col("_refused") | F.coalesce(F.col(END) <= before, F.lit(False)))
        results = results.withColumn(DELETED, F.col(DELETED) | F.col("_refused"))
    key = query.result_key or ()
    made = {name: F.expr(text) for name, text in query.results.items()}
    # HAVING may protect an expression, such as a division by a count that is not zero.
    shown_only = {name: one if name in key else F.when(~F.col(DELETED), one) for name, one in made.items()}
    return results.select(*(one.alias(name) for name, one in shown_only.items()), DELETED)


def require_same_query(rows: DataFrame, query: QueryWindows) -> StructType:
    """Let Spark parse the declared text, and compare its plan with that of the query as it was read and split.

    Args:
        rows: the epoch's records; only their types are used.
        query: the compiled query.

    Returns:
        The columns and types that Spark gives the declared query.

    Raises:
        DeclarationError: Spark refuses the text, or reads it otherwise.
    """
    spark = rows.sparkSession
    schema = rows.select(*(quoted(name) for name in query.record)).schema
    try:
        records = spark.createDataFrame([], schema)
        asked = spark.sql(query.query, args=query.parameters or None, records=records)
        read = spark.sql(query.text, records=records)
        parts = query_results(_partials(query_rows(records, query), query), query, before=F.lit(None))
    except (AnalysisException, ParseException) as error:
        raise DeclarationError(f"windows.query: Spark refuses it: {str(error).strip().splitlines()[0]}") from error
    given = {one.name: one.dataType for one in asked.schema}
    split = {one.name: one.dataType for one in parts.drop(DELETED).schema}
    if not asked.sameSemantics(read) or given != split:
        raise DeclarationError(
            f"windows.query: Spark reads it otherwise than Epochline. Spark gives {asked.schema.simpleString()};"
            f" Epochline has read: {query.text}. Write the expressions in which they differ another way"
        )
    return asked.schema


def _partials(rows: DataFrame, query: QueryWindows) -> DataFrame:
    """An empty frame with the columns and types of partial aggregates before they are stored."""
    moments = {name: F.lit(None).cast("timestamp") for name in (START, END)}
    aggregates = {
        name: F.expr(f"{one.function}({'*' if one.column is None else quoted(one.column)})")
        for name, one in query.read_aggregates.items()
    }
    made = rows.groupBy(*(quoted(name) for name in query.key)).agg(
        *(aggregate.alias(name) for name, aggregate in aggregates.items())
    )
    types = {one.name: one.dataType for one in from_arrow_schema(spark_schema(query.types))}
    wrong = [one.name for one in made.schema if one.name in types and one.dataType != types[one.name]]
    if wrong:
        raise DeclarationError(f"windows.query: Spark gives {wrong[0]} another type than {query.types[wrong[0]]}")
    return made.withColumns(moments).withColumn(DELETED, F.lit(False))
