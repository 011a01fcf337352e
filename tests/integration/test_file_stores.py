"""Files in HDFS and in an S3 server that go away, come back, race and break a promise (P5, Q5)."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from epochline import Files
from epochline.errors import SinkAheadError, SinkError, SinkUnavailableError
from epochline.protocol.sink import Committable
from epochline.sinks.file_manifest import committed_files
from tests.integration.file_epochs import all_visitors, attempt_of, read_visitors, sealed, sink_at
from tests.integration.sinks_world import SinksPipeline, new_world
from tests.integration.stores import S3, Store, started
from tests.reading import rows_in_folder

pytestmark = pytest.mark.long
EPOCHS = range(1, 11)
COLUMNS = {"value": "text"}


@pytest.fixture(params=["hdfs", "s3"])
def store(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def world(store: Store, postgres_dsn: str, kafka_bootstrap: str) -> SinksPipeline:
    return new_world(postgres_dsn, kafka_bootstrap, Files(path=store.new_url(), columns=COLUMNS), table=False)


@pytest.fixture
def overwriting(tmp_path: Path) -> Iterator[Store]:
    """An S3 server that ignores ``If-None-Match`` and answers 200 to the second PUT as well."""
    with started(S3(tmp_path, conditional=False)) as store:
        yield store


def in_files(world: SinksPipeline) -> list[str]:
    (files,) = world.it.pipeline.external
    assert isinstance(files, Files)
    return sorted(row["value"] for row in rows_in_folder(files.path))


def test_an_epoch_committed_while_its_store_is_away_is_shown_once_when_the_store_is_back(
    store: Store, world: SinksPipeline
) -> None:
    """X11, P10: the publish says that a repeat helps, the next plan goes on, and what was shown before is kept."""
    world.epoch("a", "b")
    world.it.publish()
    world.epoch("c")
    store.kill()
    try:
        with pytest.raises(SinkUnavailableError, match="Nothing was lost; try again when it answers") as away:
            world.it.publish()
        planned, _ = world.it.asked_to_plan()
    finally:
        store.start()
    assert away.value.retryable
    assert any("is down, and shows this epoch when it is back" in note for note in planned.notes)
    assert in_files(world) == ["a", "b"]

    assert [one.epoch_id for one in world.it.publish()] == [2]

    assert world.it.publish() == []
    assert in_files(world) == ["a", "b", "c"]


def test_of_publishers_that_show_one_epoch_at_the_same_moment_one_wins_and_the_others_are_refused(store: Store) -> None:
    """INV-5, F38: the tokens differ, as after a ledger that went back; nothing replaces the entry of the first one."""
    url = store.new_url()
    for epoch_id in EPOCHS:
        committables = [sealed(sink_at(url), attempt_of(epoch_id, number)) for number in (1, 2, 3)]
        together = threading.Barrier(len(committables))

        def shown(committable: Committable, together: threading.Barrier = together) -> bool:
            sink = sink_at(url)
            together.wait()
            try:
                sink.commit(committable)
            except SinkAheadError:
                return False
            return True

        with ThreadPoolExecutor(len(committables)) as threads:
            outcomes = list(threads.map(shown, committables))

        assert outcomes.count(True) == 1
        winner = committables[outcomes.index(True)]
        (entry,) = committed_files(url, after=epoch_id - 1)
        assert all(f"/{winner.body['folder']}/" in file for file in entry.files)

    assert read_visitors(url) == all_visitors(*EPOCHS)


def test_a_server_that_ignores_the_condition_of_a_put_is_refused_by_name_before_anything_is_planned(
    overwriting: Store, postgres_dsn: str, kafka_bootstrap: str
) -> None:
    """Q5: what is not promised there is refused, not only documented."""
    url = overwriting.new_url()
    world = new_world(postgres_dsn, kafka_bootstrap, Files(path=url, columns=COLUMNS), table=False)
    world.produce("a")

    said = f"files:{url}: the store overwrites a file in spite of If-None-Match"
    with pytest.raises(SinkError, match=said) as refused:
        world.it.planned()

    assert not refused.value.retryable
    assert world.it.sql("SELECT count(*) FROM epochline.epochs") == [(0,)]
