"""Files that committed epochs leave for people (C11), with a real ledger and a source that counts."""

import json
import logging
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epochline import Pipeline, PostgresTable, Settings, StateTable, Text
from epochline.postgres.ledger.savepoint_file import files_in
from tests.integration.in_process import InProcess, counter, over_source
from tests.integration.operating import imported

NewWorld = Callable[..., InProcess]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path))
    return tmp_path / "flink" / "ck_demo" / "hello"


@pytest.fixture
def world(postgres_dsn: str, folder: Path) -> NewWorld:
    def make(numbers: int = 100, **declared: Any) -> InProcess:
        source = counter(numbers, records_per_epoch=10)
        sinks = [PostgresTable(table="hello", columns={"value": "text"})]
        given = {"profile": "checkpoint_demo", "settings": Settings(minimum_pause=0), **declared}
        return over_source(postgres_dsn, Pipeline(name="hello", source=source, parse=Text(), sinks=sinks, **given))

    return make


def said(file: Path) -> dict[str, Any]:
    with zipfile.ZipFile(file) as archive:
        return dict(json.loads(archive.read("savepoint.json")))


def test_three_epochs_leave_three_files_with_offsets_sinks_and_counts(world: NewWorld, folder: Path) -> None:
    """C11, K1: each with the epoch's number; only their owner can read them."""
    one = world()

    for _ in range(3):
        one.epoch()

    files = files_in(folder)
    assert [file.name for file in files.values()] == [f"epoch-000000000{number}.zip" for number in (1, 2, 3)]
    for number, file in files.items():
        found = said(file)
        assert (found["pipeline"], found["epoch_id"]) == ("hello", number)
        assert [(head["topic"], head["next_offset"]) for head in found["heads"]] == [("numbers", number * 10)]
        ranges = [{"topic": "numbers", "partition": 0, "start": number * 10 - 10, "until": number * 10}]
        assert found["ranges"] == ranges
        counts = {"read": 10, "passed": 10, "skipped": 0, "quarantined": 0, "rows_written": 10}
        assert (found["counts"], found["sinks"]) == (counts, [{"sink": "hello", "rows": 10}])
        assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o077) == (0o600, 0)
    assert sorted(folder.iterdir()) == list(files.values()), "nothing else is left there"


def test_only_the_newest_files_are_kept_and_what_a_killed_writer_left_is_deleted(world: NewWorld, folder: Path) -> None:
    """C11: and files that are not an epoch's, or of an epoch that this ledger does not know, are left alone."""
    one = world(settings=Settings(minimum_pause=0, epoch_files_kept=2))
    one.epoch()
    (folder / f".epoch-1.{'0' * 32}").touch()
    others = {folder / "notes.txt", folder / "epoch-0000000099.zip"}
    for other in others:
        other.touch()

    for _ in range(3):
        one.epoch()

    assert set(folder.iterdir()) == others | {folder / f"epoch-000000000{number}.zip" for number in (3, 4)}


def test_a_file_that_is_lost_damaged_or_of_another_ledger_is_written_again(world: NewWorld, folder: Path) -> None:
    """C11: a repeat changes nothing."""
    one = world()
    planned, _, _ = one.sealed()
    one.commit(planned)
    file = folder / "epoch-0000000001.zip"
    first, before = said(file), file.stat()
    one.commit(planned)
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == (before.st_mtime_ns, before.st_ino)

    file.write_bytes(file.read_bytes()[:-30])
    one.planned()
    assert said(file) == first

    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("savepoint.json", json.dumps(first | {"made_at": "2026-01-01T00:00:00+00:00"}))
    one.commit(planned)
    assert said(file) == first


def test_a_folder_that_cannot_be_written_fails_no_epoch_and_the_next_plan_says_so(
    world: NewWorld, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C11: the ledger is the truth, and losing the file loses nothing."""
    one = world()
    folder.parent.parent.write_text("a file where a folder should be")

    with caplog.at_level(logging.WARNING):
        one.epoch()
    planned, _ = one.planned()

    assert one.sql("SELECT count(*) FROM hello") == [(10,)]
    assert "epoch_file.failed pipeline=hello" in caplog.text
    assert any(f"the newest epoch has no file in {folder} yet" in note for note in planned.notes)


def test_without_the_setting_no_file_is_left(world: NewWorld, folder: Path) -> None:
    world(profile="kafka_to_db").epoch()

    assert not folder.parent.exists()


def test_the_file_holds_the_state_in_bounded_memory(world: NewWorld, tmp_path: Path) -> None:
    """C11, C8: 40 MB of state, of which Python never holds more than one."""
    one = world()
    one.epoch()
    columns = {"word": "text", "count": "bigint"}
    state = StateTable(table="counts", key="word", columns=columns, keys="pipelines.word_count:words")
    stateful = one.pipeline.model_copy(update={"state": (state,), "transform": "pipelines.word_count:count"})
    with one.ledger.transaction() as tx:
        tx.targets.create(stateful)
    one.sql("INSERT INTO counts SELECT repeat(n::text, 30), n, 1 FROM generate_series(1, 200000) n")

    tracemalloc.start()
    with one.ledger.transaction() as tx:
        file = tx.savepoints.leave_file(stateful, tmp_path / "large", keep=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert file is not None
    assert [(state["state"], state["keys"]) for state in said(file)["states"]] == [("counts", 200000)]
    with zipfile.ZipFile(file) as archive, archive.open("state-0.txt") as rows:
        size = sum(map(len, iter(lambda: rows.read(1 << 20), b"")))
    assert size > 30_000_000
    assert peak < 4_000_000


def test_a_file_is_a_savepoint_that_can_be_imported(world: NewWorld, folder: Path) -> None:
    """C11, C13."""
    one = world()
    one.epoch()

    imported(one, files_in(folder)[1])

    with one.ledger.transaction() as tx:
        assert [(kept.name, kept.epoch_id) for kept in tx.savepoints.of("hello")] == [("epoch-1", 1)]
