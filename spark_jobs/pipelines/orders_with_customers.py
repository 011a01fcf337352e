"""Joins orders with customers of another source. An order waits in state until its customer is known."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

_ORDERS = "array<struct<order_id:string,amount:decimal(12,2)>>"


def join(records: Mapping[str, DataFrame], state: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Return each order once, with its customer's name: in the epoch in which both are known.

    The state of a customer has the name, and as JSON the orders that came before the name. A name that comes again
    holds for later orders.
    """
    orders, customers = (frame.where(~F.col("_tombstone")) for frame in (records["orders"], records["customers"]))
    placed = orders.groupBy("customer_id").agg(
        F.sort_array(F.collect_list(F.struct("order_id", "amount"))).alias("now")
    )
    names = customers.groupBy("customer_id").agg(F.max_by("name", F.struct("_partition", "_offset")).alias("new_name"))
    stored = state["examples.customers"]
    empty = F.from_json(F.lit("[]"), _ORDERS)
    merged = (
        placed.join(names, "customer_id", "full")
        .join(stored, "customer_id", "left")
        .select(
            "customer_id",
            F.coalesce("new_name", "name").alias("name"),
            F.concat(F.coalesce(F.from_json("waiting", _ORDERS), empty), F.coalesce("now", empty)).alias("orders"),
        )
    )
    joined = merged.where("name IS NOT NULL").select("customer_id", "name", F.inline("orders"))
    kept = merged.select("customer_id", "name", F.when(F.col("name").isNull(), F.to_json("orders")).alias("waiting"))
    return {"examples.orders_with_customers": joined, "examples.customers": kept}
