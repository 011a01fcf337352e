"""What the pages say that an action would do, read by a reader's login, beside what the action itself previews."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from epochline import Bounds
from epochline.airflow.acts import ACTS
from epochline.airflow.pages.quarantine import Place, QuarantineFilter, QuarantineView, quarantine_view, record_view
from epochline.airflow.pages.views import MOST_COUNTED
from epochline.airflow.previews import Foreseen
from epochline.airflow.reading import snapshot
from epochline.errors import ActionRefusedError, EpochNotFoundError, LedgerError
from epochline.operations import DAG_ACTIONS
from tests.contract.operators import act
from tests.contract.worlds import World, orders, quarantined
from tests.databases import query, set_aside
from tests.integration.logins import AsSuperuser, Login, user
from tests.integration.page_views import html


@pytest.fixture
def reader(login: Login, as_superuser: AsSuperuser) -> str:
    """A login as the pages have it: a reader that may take the inspector's role."""
    dsn = login("epochline_reader")
    as_superuser(f"GRANT epochline_inspector TO {user(dsn)} WITH INHERIT FALSE")
    return dsn


def foresee(dsn: str, action: str, given: dict[str, Any]) -> Foreseen:
    act = ACTS[action]
    parsed = act.parse({name: str(value) for name, value in given.items()})
    assert act.is_complete(parsed)
    with snapshot(dsn, inspect="like" in given) as ledger:
        return act.foresee(ledger, "orders", parsed)


def paused(world: World, _: str) -> None:
    world.to_committed()
    act(world, "pause")


def waiting(world: World, _: str) -> None:
    """Sealed, and outside its bounds."""
    world.pipeline = orders(bounds=Bounds(most_rows=14))
    world.to_sealed()


def aborted(world: World, _: str) -> None:
    world.to_begun()
    world.abort(1, reason="why")


def lost(world: World, dsn: str) -> None:
    world.to_committed("run-1", record_limit=4)
    query(dsn, "UPDATE epochline.log_end SET log_start = 9 WHERE partition = 0")
    world.kafka.change("orders", 0, log_start=9)


def kept(world: World, _: str) -> None:
    world.to_committed("run-1", record_limit=4)
    act(world, "savepoint", name="s")
    world.to_committed("run-2")


STATES: dict[str, Callable[[World, str], Any]] = {
    "planned": lambda world, _: world.plan(), "sealed": lambda world, _: world.to_sealed(),
    "committed": lambda world, _: world.to_committed(), "quarantined": lambda world, _: quarantined(world),
    "aborted": aborted, "paused": paused, "lost": lost, "kept": kept, "waiting": waiting,
}  # fmt: skip
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("retry", {}), ("pause", {}), ("resume", {}), ("publish", {}), ("declare-loss", {}), ("abort", {"epoch": 1}),
    ("abort", {"epoch": 9}), ("approve", {"epoch": 1}), ("approve", {"epoch": 9}), ("requeue", {"everything": True}), ("requeue", {"epoch": 1, "like": "%at 3"}),
    ("requeue", {"like": "no such%"}), ("requeue", {"topic": "orders", "partition": 0, "offset": 2}),
    ("savepoint", {"name": "s"}), ("restore", {"name": "s"}),
]  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_a_page_refuses_what_the_action_refuses_and_nothing_else(
    world: World, reader: str, postgres_dsn: str, state: str
) -> None:
    """Every action in every state, and a page counts what the action counts."""
    STATES[state](world, postgres_dsn)
    for name, given in ASKED:
        action = DAG_ACTIONS[name]
        try:
            done = action.preview(world.subject, action.parse(given))
            refused = done.refusal
        except EpochNotFoundError as error:
            done, refused = None, str(error)

        seen = foresee(reader, name, given)

        assert (seen.refusal is None) is (refused is None), (name, given, seen.refusal, refused)
        assert bool(seen.lines) is (seen.refusal is None), name
        if done is not None and refused is None and name in ("requeue", "declare-loss"):
            key = "quarantined" if name == "requeue" else "lost"
            assert seen.state[key] == (done.before if name == "requeue" else done.after)[key], name


OFFERED: dict[str, dict[str, Any]] = {
    "abort": {"epoch": 1}, "approve": {"epoch": 1}, "savepoint": {"name": "another"}, "restore": {"name": "s"}, "extend-back": {"to": "earliest"},
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_a_page_offers_the_actions_that_would_not_be_refused(
    world: World, reader: str, postgres_dsn: str, state: str
) -> None:
    STATES[state](world, postgres_dsn)
    with snapshot(reader) as ledger:
        [row] = ledger.ask("act_pipeline", pipeline="orders").rows

    offered = {name for name, one in ACTS.items() if one.applies(row)}

    allowed = {name for name in ACTS if foresee(reader, name, OFFERED.get(name, {})).refusal is None}
    # What is left of an aborted epoch may be discarded again.
    assert offered == allowed - ({"abort"} if state == "aborted" else set())
    assert {name for name in offered if ACTS[name].danger} <= {"abort", "approve", "restore", "declare-loss"}


def test_a_requeue_without_a_choice_shows_how_many_records_it_takes(world: World, reader: str) -> None:
    quarantined(world)

    seen = foresee(reader, "requeue", {})

    assert seen.lines[-1] == "2 records of orders go through today's parse in an epoch of their own; no offset moves"
    assert ACTS["requeue"].parse({"out_of_order": "true"}) == {"everything": True, "out_of_order": True}
    assert ACTS["requeue"].parse({"epoch": "1", "offset": ""}) == {"epoch": 1}
    assert "everything" not in {one.name for one in ACTS["requeue"].fields}


def test_a_preview_says_what_becomes_of_rows_and_offsets(world: World, reader: str, postgres_dsn: str) -> None:
    kept(world, postgres_dsn)
    restore = foresee(reader, "restore", {"name": "s"})
    assert "goes back to where epoch 1 of orders left it" in restore.lines[0]
    assert restore.lines[1] == "undone: 1 epoch, 11 rows; what they wrote leaves the targets"
    assert restore.state["undone"] == 1
    world.kafka.produce("orders", 0, 3)
    world.to_sealed("run-3")
    abort = foresee(reader, "abort", {"epoch": 3})
    assert "3 offsets, attempt 1, 3 rows staged" in abort.lines[0]
    assert abort.state == {"epoch": 3, "state": "PRE_COMMITTED", "attempt": 1}


def test_extend_back_names_the_offsets_between_the_log_and_the_origin(
    world: World, reader: str, postgres_dsn: str
) -> None:
    world.kafka.change("orders", 0, log_start=3)
    world.to_committed()
    assert foresee(reader, "extend-back", {"to": "earliest"}).refusal is not None
    query(postgres_dsn, "UPDATE epochline.log_end SET log_start = 1 WHERE partition = 0")

    seen = foresee(reader, "extend-back", {"to": "earliest", "step": 5})

    assert seen.lines[0] == "orders-0: offsets [1, 3) are committed, the newest first"
    assert seen.state["origins"] == {"orders-0": 3}
    with pytest.raises(ActionRefusedError, match="invalid parameters"):
        foresee(reader, "extend-back", {"to": "yesterday"})


def listed(dsn: str, *, inspect: bool, **chosen: Any) -> QuarantineView:
    with snapshot(dsn, inspect=inspect) as ledger:
        view = quarantine_view(ledger, "orders", QuarantineFilter(**chosen), inspect=inspect)
    assert view is not None
    return view


def test_a_page_of_a_large_quarantine_reads_its_own_records_alone(world: World, reader: str, postgres_dsn: str) -> None:
    """Issue 19: flat to a million. The first page, one in the middle, and the records of one epoch are found by an index."""
    quarantined(world)
    world.kafka.produce("orders", 0, 1)
    world.to_committed("run-2")
    query(
        postgres_dsn,
        'INSERT INTO epochline.quarantined_record (pipeline, generation, epoch_id, topic, topic_id, partition, "offset", reason)'
        " SELECT 'orders', 1, 2, 'orders', 'y', 0, n, 'why' FROM generate_series(1, 20000) n",
    )
    query(postgres_dsn, "ANALYZE epochline.quarantined_record")
    middle = {"after_epoch": 2, "after_topic": "orders", "after_partition": 0, "after_offset": 19_990}
    for chosen, found in (({}, 50), (middle, 12), ({"epoch": 1}, 2)):
        for inspect in (False, True):
            view = listed(reader, inspect=inspect, **chosen)
            assert len(view.records.rows) == found
            [(plan,)] = query(postgres_dsn, f"EXPLAIN (ANALYZE, FORMAT JSON) {view.records.sql}".replace("%", "%%"))
            scan = plan[0]["Plan"]["Plans"][0]
            assert (scan["Index Name"], scan.get("Rows Removed by Filter", 0)) == ("newest_quarantined", 0), chosen
            assert view.total == (2 if chosen.get("epoch") else MOST_COUNTED), "it counts no further"


def test_the_quarantine_is_paged_without_a_gap_and_a_reader_gets_places_alone(world: World, reader: str) -> None:
    quarantined(world)
    seen: list[int] = []
    after: dict[str, Any] = {}
    while True:
        view = listed(reader, inspect=False, size=1, **after)
        seen += [row["offset"] for row in view.records.rows]
        assert not {"value", "reason", "key", "headers"} & {name for row in view.records.rows for name in row}
        if view.after is None:
            break
        after = dict(view.after)
    assert seen == [2, 3]
    assert listed(reader, inspect=False, epoch=2).records.rows == []
    assert listed(reader, inspect=False, until="2000-01-01T00:00").records.rows == []
    by_reason = listed(reader, inspect=True, reason="%at 3")
    assert [row["reason"] for row in by_reason.records.rows] == ["not JSON at 3"]
    assert by_reason.requeue == "like=%25at+3"
    for size in (0, 201):
        with pytest.raises(ValueError, match="size"):
            QuarantineFilter(size=size)


def test_the_quarantine_is_counted_and_grouped_by_reason_without_the_values_in_it(
    world: World, reader: str, postgres_dsn: str
) -> None:
    quarantined(world)
    why = ("a%_b: 'x' does not fit bigint", 'a%_b: {"b": 1} does not fit bigint', "no 'city' at 7", "no 'town' at 8")
    for at, reason in enumerate(why):
        by, moment = (None, None) if at else (1, "now")
        set_aside(postgres_dsn, 101 + at, reason=reason, requeued_by=by, requeued_at=moment)

    view = listed(reader, inspect=True)

    assert (view.total, view.waiting) == (6, 5)
    assert view.reasons is not None
    groups = {row["reason"]: (row["records"], row["waiting"], row["like"]) for row in view.reasons.rows}
    assert groups == {
        "a%_b: * does not fit bigint": (2, 1, "a\\%\\_b: % does not fit bigint"),
        "no * at *": (2, 2, "no % at %"),
        "not JSON at *": (2, 2, "not JSON at %"),
    }
    for records, _, like in groups.values():
        of_group = listed(reader, inspect=True, reason=like)
        assert (len(of_group.records.rows), of_group.total) == (records, records), like
    of_reader = listed(reader, inspect=False)
    assert (of_reader.total, of_reader.waiting, of_reader.reasons) == (6, 5, None)
    text = html("quarantine.html", "/", view=view, chosen=QuarantineFilter(), may_act=True)
    assert re.search(r'id="total"><a[^>]*>6 records</a> set aside: <a[^>]*>5</a> wait', text)


def test_a_record_is_shown_as_text_without_control_characters_and_in_hex(
    world: World, reader: str, postgres_dsn: str
) -> None:
    quarantined(world)
    query(
        postgres_dsn,
        "UPDATE epochline.quarantined_record SET value = '\\x1b5b33316dff0a'::bytea,"
        ' headers = \'[["h", "AQ=="], ["none", null]]\' WHERE "offset" = 2',
    )
    with snapshot(reader, inspect=True) as ledger:
        view = record_view(ledger, "orders", Place(epoch=1, topic="orders", partition=0, offset=2))

    assert view is not None
    assert [(one.name, one.size, one.text) for one in view.parts] == [
        ("key", 0, "none"), ("value", 7, "\\x1b[31m\\xff\\n"),
    ]  # fmt: skip
    assert view.parts[1].hex[0].startswith("00000000  1b 5b 33 31 6d ff 0a")
    assert [(one.name, one.text) for one in view.headers] == [("h", "\\x01"), ("none", "none")]
    assert view.requeue == "topic=orders&partition=0&offset=2"


def test_a_login_that_may_not_inspect_is_told_the_grant_that_is_missing(login: Login, world: World) -> None:
    dsn = login("epochline_reader")
    with pytest.raises(LedgerError, match="GRANT epochline_inspector TO"), snapshot(dsn, inspect=True):
        pass
