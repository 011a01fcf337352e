"""The janitor deletes history that is older than its declared retention, and nothing that an epoch needs."""

import time
from contextlib import closing
from datetime import datetime, timedelta, tzinfo
from threading import Thread
from typing import Any

import psycopg2
import pytest

from epochline import Retention, Settings
from epochline.errors import ActionRefusedError
from epochline.operations import janitor, tidy
from tests.contract.worlds import run
from tests.databases import query, set_aside
from tests.integration.bench import UPSERT, Bench, NewBench, kv
from tests.integration.guarantee import broken
from tests.integration.operating import act

WEEK = timedelta(days=7)
EVERYTHING = Retention(quarantined=WEEK, before_images=WEEK, deleted_keys=WEEK, ledger=WEEK)
GONE = {"k": "b", "_deleted": True}
AGED = """
UPDATE epochline.epoch SET committed_at = committed_at - interval '8 days' WHERE epoch_id <= %(until)s;
UPDATE epochline.quarantined_record SET quarantined_at = quarantined_at - interval '8 days' WHERE epoch_id <= %(until)s
"""


def declared(bench: NewBench, retention: Retention | None) -> Bench:
    """Three epochs of an upsert target with before-images, deleted keys and quarantined records."""
    it = bench(**UPSERT, before_images=9)
    it.pipeline = it.pipeline.model_copy(update={"settings": Settings(retention=retention)})
    it.after([kv("a", 1), kv("b", 1)], [GONE, kv("a", 2)], [kv("a", 3), kv("c", 3)])
    topic = it.sql("SELECT DISTINCT topic_id FROM epochline.heads")[0][0]
    for epoch, offset in ((1, 100), (3, 101)):
        set_aside(it.dsn, offset, epoch_id=epoch, topic_id=topic, key="secret", value="personal", reason="of ada")
    return it


def aged(it: Bench, until: int = 1) -> None:
    """Let epochs up to this one, what they set aside and what they deleted be eight days old."""
    query(it.dsn, AGED.replace("%(until)s", str(until)))
    it.sql(f"UPDATE epochline.{side(it)} SET _epochline_deleted_at = _epochline_deleted_at - interval '8 days'")


def side(it: Bench) -> str:
    ((table,),) = it.sql("SELECT relname FROM pg_class WHERE relname LIKE 'deleted\\_%%' AND relkind = 'r'")
    return str(table)


def kept(it: Bench) -> dict[str, Any]:
    return {
        "bytes": it.sql('SELECT "offset" FROM epochline.quarantine WHERE value IS NOT NULL ORDER BY 1'),
        "images": it.sql(
            "SELECT epoch_id FROM epochline.before_image WHERE to_regclass('epochline.' || table_name) IS NOT NULL"
            " ORDER BY 1"
        ),
        "deleted": it.sql(f"SELECT k FROM epochline.{side(it)}"),
        "parts": it.sql(
            "SELECT DISTINCT epoch_id FROM epochline.part JOIN epochline.attempt USING (attempt_id) ORDER BY 1"
        ),
    }


def test_without_a_retention_the_janitor_deletes_nothing(bench: NewBench) -> None:
    """Those who declare nothing keep everything."""
    it = declared(bench, None)
    aged(it, until=3)
    before = kept(it)

    tidied = tidy(it.ledger, run("janitor"))

    assert (tidied.expired, kept(it)) == ({}, before)
    assert (before["deleted"], before["images"]) == ([("b",)], [(1,), (2,), (3,)])


def test_what_is_older_than_its_retention_is_deleted_and_counted(bench: NewBench) -> None:
    """INV-1, INV-5, INV-9: the chain, the receipts and every count hold; the next epoch goes on."""
    it = declared(bench, EVERYTHING)
    aged(it)
    wrong = broken(it.sql, "orders", "t")  # no epoch counted what this test put into the quarantine

    first, second = (tidy(it.ledger, run("janitor")) for _ in range(2))

    assert first.expired == {"orders": {"quarantined": 1, "before_images": 1, "deleted_keys": 1, "ledger": 1}}
    assert "orders: older than its retention and deleted: " in first.lines()[-1]
    assert second.expired == {}
    assert kept(it) == {"bytes": [(101,)], "images": [(2,), (3,)], "deleted": [], "parts": [(2,), (3,)]}
    erased = it.sql("SELECT reason, key, value FROM epochline.quarantine WHERE erased_at IS NOT NULL")
    assert erased == [("erased by the pipeline's retention of 7 days, 0:00:00", None, None)]
    assert it.sql("SELECT rows, rows_found FROM epochline.staged_rows WHERE rows <> rows_found") == []
    assert it.sql("SELECT rows_staged FROM epochline.attempts ORDER BY epoch_id") == [(2,), (2,), (2,)]
    it.epoch(kv("a", 4))
    assert it.rows() == [("a", 4), ("c", 3)]
    assert broken(it.sql, "orders", "t").keys() <= wrong.keys()


def test_the_newest_epoch_and_what_waits_for_its_commit_stay_whatever_their_age(bench: NewBench) -> None:
    """INV-6: an epoch in flight keeps its parts, and a sealed one is committed afterwards."""
    it = declared(bench, EVERYTHING)
    aged(it, until=3)
    sealed = it.sealed(kv("a", 4))

    tidy(it.ledger, run("janitor"))

    assert kept(it)["parts"] == [(3,), (4,)]
    it.commit(sealed)
    assert it.rows() == [("a", 4), ("c", 3)]


def test_a_restore_across_images_that_were_deleted_says_so(bench: NewBench) -> None:
    it = declared(bench, None)
    act(it, "savepoint", name="before")
    it.pipeline = it.pipeline.model_copy(update={"settings": Settings(retention=EVERYTHING)})
    it.after([kv("a", 4)], [kv("a", 5)])
    aged(it, until=4)
    tidy(it.ledger, run("janitor"))

    with pytest.raises(
        ActionRefusedError, match="before-images of epoch 4 were deleted by the pipeline's retention at"
    ):
        act(it, "restore", name="before")

    assert it.rows() == [("a", 5), ("c", 3)]


def test_a_requeue_in_flight_keeps_the_bytes_that_it_reads(bench: NewBench) -> None:
    """INV-3: and a record without bytes is never read again."""
    it = declared(bench, EVERYTHING)
    aged(it, until=3)
    query(
        it.dsn,
        "UPDATE epochline.epoch SET state = 'PLANNED', committed_at = NULL WHERE epoch_id = 3;"
        ' INSERT INTO epochline.requeue_claim SELECT pipeline, 3, generation, topic_id, partition, "offset"'
        ' FROM epochline.quarantined_record WHERE "offset" = 100',
    )

    tidy(it.ledger, run("janitor"), stale_after=timedelta(days=999))

    assert kept(it)["bytes"] == [(100,)]


def test_an_erased_record_is_requeued_no_more(bench: NewBench) -> None:
    it = declared(bench, EVERYTHING)
    aged(it)
    tidy(it.ledger, run("janitor"))

    assert list(it.sql("SELECT \"offset\", requeued_by FROM epochline.quarantine ORDER BY 1")) == [
        (100, 1), (101, None),
    ]  # fmt: skip


def test_a_janitor_gives_way_to_a_commit_that_holds_the_epoch(bench: NewBench) -> None:
    """It waits for a second and leaves the rest to the next one: no commit waits for it, and it fails in no way."""
    it = declared(bench, EVERYTHING)
    aged(it)
    sealed = it.sealed(kv("a", 4))
    with closing(psycopg2.connect(it.dsn)) as committing, committing, committing.cursor() as cursor:
        cursor.execute("SELECT FROM epochline.epoch WHERE epoch_id = 4 FOR UPDATE")

        busy = tidy(it.ledger, run("janitor"))

    assert busy.expired == {}
    it.commit(sealed)
    assert set(tidy(it.ledger, run("janitor")).expired["orders"]) == {
        "quarantined", "before_images", "deleted_keys", "ledger",
    }  # fmt: skip


def test_epochs_and_janitors_at_the_same_time_lose_nothing(bench: NewBench) -> None:
    """Two janitors while epochs are committed: every epoch is, and the target is what they make of it."""
    it = declared(bench, Retention(quarantined=1e-6, before_images=1e-6, deleted_keys=1e-6, ledger=1e-6))
    failed: list[BaseException] = []
    deleted: list[object] = []
    running = True

    def clean() -> None:
        while running:
            try:
                deleted.append(tidy(it.ledger, run("janitor")).expired)
            except BaseException as error:
                failed.append(error)

    threads = [Thread(target=clean) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):
            it.epoch(kv("a", number), {"k": "c", "v": number, "_deleted": number % 2 == 0})
    finally:
        running = False
        for thread in threads:
            thread.join()

    assert failed == []
    assert any(deleted), "no janitor met an epoch"
    assert it.rows() == [("a", 9), ("c", 9)]


@pytest.mark.parametrize("hours", [-3, 3])
def test_where_the_clocks_of_janitor_and_database_differ_nothing_is_deleted_by_its_age(
    bench: NewBench, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-9: nobody knows which of them is wrong, and what is deleted does not come back."""
    it = declared(bench, EVERYTHING)
    aged(it)
    before = kept(it)

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Wrong":
            return cls.fromtimestamp(time.time() - hours * 3600, tz)

    with monkeypatch.context() as wrong:
        wrong.setattr(janitor, "datetime", Wrong)
        tidied = tidy(it.ledger, run("janitor"))

    assert (tidied.expired, kept(it)) == ({}, before)
    assert f"the clock of the database is {hours * 3600:+d} s from this machine's" in tidied.lines()[-1]
    assert tidy(it.ledger, run("janitor")).expired
