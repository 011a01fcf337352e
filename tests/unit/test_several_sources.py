"""Several sources: what a declaration refuses, what it keeps, and how the ledger names clusters (N7)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochline import (
    CustomSource,
    EventTime,
    FromGroup,
    Input,
    Json,
    KafkaSource,
    Pipeline,
    PostgresTable,
    Sources,
    StateTable,
    Text,
    Tumbling,
    Windowed,
)
from epochline.config.discovery import unimportable
from epochline.declare.inputs import require_kafka, require_one
from epochline.errors import ConfigurationError, DeclarationError
from epochline.protocol.changes import Effect, changes
from epochline.protocol.offsets import cluster_ids, cluster_text, moved_clusters, with_clusters
from epochline.spark.credentials import read_credentials
from tests.declaring import read_back

SHOP, CRM = (KafkaSource(topics="t", connection=name) for name in ("shop", "crm"))
ORDERS = Input(source=SHOP, parse=Json(columns={"order_id": "text", "customer": "bigint"}))
CUSTOMERS = Input(source=CRM, parse=Json(columns={"customer": "bigint", "name": "text"}))
BOTH = Sources(inputs={"orders": ORDERS, "customers": CUSTOMERS})
TABLE = PostgresTable(table="joined", columns={"order_id": "text", "name": "text"}, aggregated=True)


def joined(**changes: Any) -> Pipeline:
    join = "pipelines.orders_with_customers:join"
    return Pipeline(**{"name": "joined", "source": BOTH, "transform": join, "sinks": TABLE} | changes)


WINDOWS = Windowed(
    time=EventTime(column="at"), window=Tumbling(size=5), key="customer", aggregates={"count": "count(*)"},
    into="joined",
)  # fmt: skip


NOTHING = StateTable(table="s", key="nothing", columns={"nothing": "text"})
PLAIN = KafkaSource(topics="t")
LIMITED = KafkaSource(topics="t", records_per_epoch=5)
A = {"a": "text"}


@pytest.mark.parametrize(
    ("declare", "fields", "said"),
    [
        (joined, {"parse": Text()}, "parse: each of several sources has its own; give it to the Input"),
        (joined, {"record": A}, "record: each of several sources has its own"),
        (joined, {"explode": "a"}, "explode: each of several sources has its own"),
        (joined, {"transform": None}, "transform: name the function that makes rows of several sources"),
        (joined, {"transform": None, "windows": WINDOWS}, "windows: count the records of one source"),
        (joined, {"wake_on_data": 10}, "wake_on_data: only one source starts runs"),
        (joined, {"state": NOTHING}, "the record has no nothing"),
        (joined, {"source": PLAIN}, "parse: name a ready-made parser, or a function"),
        (Sources, {"inputs": {"orders": ORDERS}}, "at least 2"),
        (Sources, {"inputs": {"orders": ORDERS, "a/b": CUSTOMERS}}, "letters, digits"),
        (Sources, {"inputs": {"orders": ORDERS, "": CUSTOMERS}}, "letters, digits"),
        (Input, {"source": PLAIN, "parse": "pipelines.cdc_orders:parse"}, "record: name the columns"),
        (Input, {"source": PLAIN, "parse": Text(), "record": A}, "record: a ready-made parser brings its own columns"),
        (Input, {"source": LIMITED, "parse": Text()}, "one limit for all sources"),
        (Input, {"source": {"nonsense": 1}, "parse": Text()}, "unknown type of source"),
    ],
)
def test_what_does_not_fit_several_sources_is_refused(
    declare: Callable[..., object], fields: dict[str, Any], said: str
) -> None:
    """An input is checked as a pipeline's source and parse are. Inputs are two at least and have plain names."""
    with pytest.raises(DeclarationError, match=said):
        declare(**fields)


def test_two_inputs_read_one_topic_only_if_one_of_them_has_no_mirror() -> None:
    again = Input(source=KafkaSource(topics=("u", "t"), connection="shop"), parse=Text())
    quiet = Input(source=KafkaSource(topics=("u", "t"), connection="shop", mirror=False), parse=Text())

    with pytest.raises(DeclarationError, match=r"inputs.orders and inputs.again both read topic t of shop"):
        Sources(inputs={"orders": ORDERS, "again": again})
    assert Sources(inputs={"orders": ORDERS, "again": quiet}).mirror


def test_no_input_may_begin_from_the_group_that_the_heads_are_mirrored_to() -> None:
    """X28."""
    mirrored = Input(source=KafkaSource(topics="t", startup=FromGroup(group="epochline.joined")), parse=Text())

    with pytest.raises(DeclarationError, match=r"source.inputs.orders.source.startup: epochline.joined is the group"):
        joined(source=Sources(inputs={"orders": mirrored, "customers": CUSTOMERS}))


def test_a_declaration_of_several_sources_is_read_back_from_the_ledger() -> None:
    own = Input(source=CustomSource(source="epochline.sources.counter:Counter"), parse=Text())

    read_back(joined(source=Sources(inputs={"orders": ORDERS, "numbers": own}, records_per_epoch=7)))


def test_a_single_source_is_the_one_input_without_a_name() -> None:
    single = joined(source=SHOP, parse=ORDERS.parse)

    assert single.inputs == {"": ORDERS}
    assert "inputs" not in single.stored()


def test_a_state_table_may_be_keyed_by_a_column_of_one_input() -> None:
    state = StateTable(table="s", key="name", columns={"name": "text"})

    assert joined(state=state).states == (state,)


def test_a_function_of_an_input_that_cannot_be_imported_is_named_with_its_input() -> None:
    broken = CUSTOMERS.model_copy(update={"parse": "no_such_module:parse"})
    pipeline = joined().model_copy(update={"source": Sources.model_construct(inputs={"orders": ORDERS, "crm": broken})})

    assert [one.partition(":")[0] for one in unimportable(pipeline)] == ["source.inputs.crm.parse"]


def test_a_topic_of_the_ledger_is_read_by_the_input_that_its_name_begins_with() -> None:
    source = joined().source

    assert source.topics == ("orders/t", "customers/t")
    assert [one for one in ("t", "orders/t", "orders/u", "gone/t") if source.reads(one)] == ["orders/t"]
    assert [one for one in ("t", "orders/t", "orders/u", "gone/t") if source.keeps(one)] == ["orders/t"]


def test_what_is_left_without_missing_topics_keeps_its_names() -> None:
    """`epochline lag` shows the topics that are there, next to the error that names the others."""
    two = Input(source=KafkaSource(topics=("t", "u")), parse=Text())
    source = Sources(inputs={"orders": two, "customers": CUSTOMERS})

    left = source.without(["orders/t", "customers/t"])
    assert left is not None
    assert left.topics == ("orders/u",)
    assert source.without(["t", "u"]) == source
    assert BOTH.without(["orders/t", "customers/t"]) is None


@pytest.mark.parametrize("require", [require_kafka, require_one])
def test_an_operation_that_needs_one_source_says_which_there_are(require: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"an audit needs a single source, and this pipeline reads 2 \(orders,"
    ):
        require("joined", joined().source, "an audit")


# Changes


def effects(before: Sources | KafkaSource, now: Sources | KafkaSource) -> dict[str, Effect]:
    found = [{"source": json.loads(one.model_dump_json())} for one in (before, now)]
    return {one.field: one.effect for one in changes(*found)}


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (Sources(inputs={"orders": ORDERS, "clients": CUSTOMERS}),
         {"source.inputs.customers": Effect.NEXT_EPOCH, "source.inputs.clients": Effect.REFUSED}),
        (SHOP, {"source": Effect.REFUSED}),
        (Sources(inputs={**BOTH.inputs, "more": Input(source=KafkaSource(topics="u"), parse=Text())}),
         {"source.inputs.more": Effect.NEXT_EPOCH}),
        (Sources(inputs={"orders": ORDERS, "customers": CUSTOMERS.model_copy(update={"parse": Text()})}),
         {"source.inputs.customers.parse": Effect.NEXT_EPOCH}),
        (Sources(inputs=BOTH.inputs, records_per_epoch=5), {"source.records_per_epoch": Effect.NEXT_EPOCH}),
        (BOTH, {}),
    ],
    ids=["renamed", "one source", "added", "parse", "limit", "the same"],
)  # fmt: skip
def test_a_change_that_gives_topics_another_name_is_refused_and_any_other_is_not(
    now: Sources | KafkaSource, found: dict[str, Effect]
) -> None:
    assert effects(BOTH, now) == found


# Clusters


@pytest.mark.parametrize("ids", [{}, {"": "4L6g3nShT-eMCtK--X86sw"}, {"a": "x", "b.c-d": "y"}])
def test_the_ledgers_text_names_the_cluster_of_each_source(ids: dict[str, str]) -> None:
    assert cluster_ids(cluster_text(ids)) == ids


def test_a_source_without_a_cluster_is_left_out() -> None:
    assert cluster_text({"orders": "x", "numbers": None}) == "orders=x"
    assert cluster_text({"numbers": None}) is None


def test_only_clusters_that_were_known_can_have_moved() -> None:
    assert moved_clusters("a=x, b=y", "b=z, c=w") == {"b": ("y", "z")}
    assert moved_clusters(None, "a=x") == {}
    assert moved_clusters("x", "y") == {"": ("x", "y")}
    assert with_clusters("a=x", "a=z, b=y") == "a=x, b=y"


# Credentials


def test_a_job_finds_the_brokers_of_each_connection_in_its_file(tmp_path: Path) -> None:
    """K21."""
    file = tmp_path / "credentials.json"
    file.touch(mode=0o600)
    kafkas = {"shop": {"bootstrap.servers": "shop:1"}, "crm": {"bootstrap.servers": "crm:1"}}
    file.write_text(json.dumps({"postgres": {"dsn": "postgresql://h/d"}, "kafka": None, "kafkas": kafkas}))

    found = read_credentials({"EPOCHLINE_CREDENTIALS": str(file)})

    assert {one: found.kafka_of(one).get("bootstrap.servers") for one in ("shop", "crm", "other")} == {
        "shop": "shop:1", "crm": "crm:1", "other": None,
    }  # fmt: skip
    assert "shop:1" not in repr(found)
