"""What a declaration of windows must be, and what may change in it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from epochline import (
    EventTime,
    Json,
    KafkaTopic,
    Pipeline,
    PostgresTable,
    Session,
    Sliding,
    StateTable,
    Tumbling,
    Windowed,
)
from epochline.errors import DeclarationError
from epochline.protocol.changes import Effect, changes
from tests import declaring
from tests.contract.worlds import orders
from tests.declaring import effects, read_back

RECORD = {"ip": "text", "at": "timestamptz", "bytes": "bigint"}
HITS = {"ip": "text", "window_start": "timestamptz", "window_end": "timestamptz", "hits": "bigint"}

CHANGES = {**HITS, "added": "boolean"}
MORE, ENDS = {**HITS, "more": "text"}, {**HITS, "window_end": "text"}
KEY = ("ip", "window_start")
LATE = PostgresTable(table="late", columns={"who": "text"})


def sink(**changed: Any) -> PostgresTable:
    fields = {"table": "hits", "mode": "upsert", "key": KEY, "columns": HITS, "aggregated": True}
    return PostgresTable(**fields | changed)


def topic(**changed: Any) -> KafkaTopic:
    return KafkaTopic(**{"topic": "hits", "value": Json(columns=HITS), "key": KEY, "aggregated": True} | changed)


def windows(**changed: Any) -> Windowed:
    fields = {"time": EventTime(column="at"), "window": Tumbling(size=5), "key": "ip", "into": "hits"}
    return Windowed(**fields | {"aggregates": {"hits": "count(*)"}} | changed)


def pipeline(declared: Windowed | None = None, sinks: Any = None, **changed: Any) -> Pipeline:
    windowed = declared or windows()
    return declaring.pipeline(parse=Json(columns=RECORD), windows=windowed, sinks=sinks or sink(), **changed)


def punctuated(column: str) -> Pipeline:
    return pipeline(windows(time=EventTime(column="at", punctuation=column)))


def into_topic(**changed: Any) -> Pipeline:
    return pipeline(windows(into="kafka:hits"), topic(**changed))


def changed(**given: Any) -> Pipeline:
    fields = {"table": "hits", "columns": CHANGES, "aggregated": True}
    return pipeline(windows(retractions="added"), PostgresTable(**fields | given))


def changed_topic(**given: Any) -> Pipeline:
    fields = {"value": Json(columns=CHANGES), "order_by": "added"}
    return pipeline(windows(into="kafka:hits", retractions="added"), topic(**fields | given))


def test_open_windows_are_state_next_to_the_results() -> None:
    """C1: they are staged and committed with the epoch, as every state is."""
    (state,) = pipeline().states

    assert isinstance(state, StateTable)
    assert (state.table, state.key, state.columns) == ("hits_open", KEY, sink().columns)
    assert [one.table for one in pipeline().tables] == ["hits", "hits_open"]


def test_a_declaration_with_windows_is_read_back_from_the_ledger() -> None:
    read_back(pipeline(windows(window=Sliding(size=10, slide=5), lateness=3)))

    assert "windows" not in json.loads(orders().stored())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pipeline(windows(time=EventTime(column="when"))), "when is not a column of the record"),
        (lambda: pipeline(windows(time=EventTime(column="ip"))), "event time is timestamptz"),
        (lambda: pipeline(windows(key="host")), "host is not a column of the record"),
        (lambda: pipeline(windows(aggregates={"hits": "sum(size)"})), "size is not a column of the record"),
        (lambda: pipeline(windows(aggregates={"hits": "avg(bytes)"})), "write count"),
        (lambda: pipeline(windows(aggregates={"ip": "count(*)"})), "two columns of the result"),
        (lambda: pipeline(windows(into="others")), "others is not among the sinks"),
        (lambda: pipeline(windows(too_late="others")), "others is not among the sinks"),
        (lambda: pipeline(windows(too_late="hits")), "must be either into or too_late"),
        (lambda: pipeline(sinks=[sink(), PostgresTable(table="more", columns=RECORD)]), "more must be either"),
        (lambda: pipeline(sinks=sink(key="ip")), "by key ip, window_start"),
        (lambda: pipeline(sinks=sink(aggregated=False)), "must be aggregated"),
        (lambda: pipeline(sinks=sink(columns=MORE)), "exactly: hits, ip, window_end"),
        (lambda: pipeline(sinks=sink(columns=ENDS)), "window_end is text"),
        (lambda: pipeline(transform="json:loads"), "cannot be combined with a transform"),
        (lambda: Sliding(size=5, slide=6), "belong to none"),
        (lambda: pipeline(windows(too_late="late"), sinks=[sink(), LATE]), "late has who"),
        (lambda: into_topic(aggregated=False), "must be aggregated=True"),
        (lambda: into_topic(value=Json(columns=MORE)), "needs columns, and exactly: hits, ip, window_end"),
        (lambda: into_topic(value=Json(columns=ENDS)), "window_end is text; it must be timestamptz"),
        (lambda: into_topic(topic="elsewhere"), "kafka:hits is not among the sinks"),
        (lambda: punctuated("when"), "when is not a column of the record"),
        (lambda: punctuated("ip"), "ip is text; name a timestamptz"),
        (lambda: punctuated("at"), "not the column of the record's time"),
        (lambda: windows(retractions="hits"), "hits would be two columns of the result"),
        (lambda: pipeline(windows(retractions="added")), "must be of mode 'append' without a key"),
        (lambda: changed(key=KEY, repeats="refuse"), "must be of mode 'append' without a key"),
        (lambda: changed(columns=HITS), "exactly: added, hits, ip, window_end, window_start"),
        (lambda: changed(columns={**CHANGES, "added": "text"}), "added is text; it must be boolean"),
        (lambda: changed_topic(order_by=()), "needs order_by='added'"),
        (lambda: changed_topic(key=()), "needs a key of ip, window_start, or of some of these"),
        (lambda: changed_topic(key=("ip", "window_end")), "needs a key of ip, window_start, or of some of these"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_declared(make: Callable[[], object], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        make()


def test_other_windows_over_the_windows_that_are_open_are_refused() -> None:
    first, later = pipeline(), pipeline(windows(lateness=9))
    assert effects(first, pipeline(windows(window=Tumbling(size=6)))) == {"windows.window": Effect.REFUSED}
    assert effects(first, pipeline(windows(window=Session(gap=6)))) == {"windows.window": Effect.REFUSED}
    assert effects(into_topic(), changed_topic())["windows.retractions"] == Effect.REFUSED
    assert effects(first, later) == {"windows.lateness": Effect.REFUSED}
    assert effects(later, first) == {"windows.lateness": Effect.NEXT_EPOCH}
    assert effects(first, pipeline(windows(window=Tumbling(size=6), into="h6"), sink(table="h6"))) == {
        "windows.into": Effect.NEXT_EPOCH,
        "windows.window": Effect.NEXT_EPOCH,
        "sinks.hits": Effect.NEXT_EPOCH,
        "sinks.h6": Effect.MIGRATION,
    }


@pytest.mark.parametrize(
    ("name", "table"),
    [("hits", "hits_open"), ("shop.hits-1", "shop_hits_1_open"), ("h" * 249, f"{'h' * 58}_open")],
    ids=["plain", "with dots and dashes", "longer than a table's name"],
)
def test_results_may_go_into_a_topic_and_open_windows_stay_in_a_table(name: str, table: str) -> None:
    """E5: every name that a topic may have."""
    declared = pipeline(windows(into=f"kafka:{name}"), topic(topic=name))

    (state,) = declared.states
    assert (state.table, state.key, state.columns) == (table, KEY, topic().record)
    read_back(declared)


@pytest.mark.parametrize("make", [changed, changed_topic])
def test_an_open_window_has_no_flag_of_a_correction(make: Callable[[], Pipeline]) -> None:
    """N5: the flag belongs to a row that was given out."""
    declared = make()

    (state,) = declared.states
    assert set(state.columns or {}) == set(HITS)
    read_back(declared)
    assert "retractions" not in pipeline().stored()


def test_disorder_is_not_changed_while_carried_watermarks_are_kept_with_it() -> None:
    """N6: a smaller one would move the watermark beyond what a record carried."""

    def declared(**time: Any) -> dict[str, Any]:
        event_time = EventTime(**{"column": "at", "out_of_orderness": 9} | time)
        windowed = windows(time=event_time).model_dump(mode="json")
        return {"windows": windowed}

    def effect(before: dict[str, Any], now: dict[str, Any]) -> list[Effect]:
        return [one.effect for one in changes(before, now)]

    marked = declared(punctuation="mark")
    assert effect(marked, declared(punctuation="mark", out_of_orderness=3)) == [Effect.REFUSED]
    assert effect(marked, declared()) == [Effect.REFUSED], "or a second change would find no mark to refuse it for"
    assert effect(marked, declared(punctuation="other")) == effect(declared(), marked) == [Effect.NEXT_EPOCH]
    assert effect(declared(), declared(out_of_orderness=3)) == [Effect.NEXT_EPOCH]
