"""The file sink: whole epochs or nothing, each row once, wherever a process ends (P5, Q5)."""

import ast
import errno
import json
import os
import pickle
import resource
import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from epochline import sinks
from epochline.declare.external import Files
from epochline.errors import EpochlineError, SealRefusedError, SinkAheadError, SinkError, SinkUnavailableError
from epochline.failpoints import KILLED
from epochline.protocol.sink import WrittenPart
from epochline.sinks.file_manifest import CommittedEpoch, committed_files
from epochline.sinks.file_part import FilePart
from epochline.sinks.files import FileSink
from tests.integration.file_epochs import (
    COLUMNS,
    PARTS,
    ROWS_OF_PART,
    all_visitors,
    attempt_of,
    batch_of,
    committed,
    keep,
    kept,
    ledger,
    read_visitors,
    seal,
    sealed,
    sink_at,
    stage,
    write_part,
)
from tests.integration.people import Patch
from tests.integration.stores import Store
from tests.processes.client import Forked, fork_server
from tests.reading import rows_of_files

ATTEMPT = attempt_of(1)
EPOCHS = range(1, 26)


def failpoints_of_the_sink() -> list[str]:
    modules = [Path(sinks.__file__).parent / name for name in ("storage.py", "files.py")]
    calls = [one for path in modules for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call)]
    return sorted(ast.literal_eval(one.args[0]) for one in calls if ast.unparse(one.func) == "failpoint")


class StoreError(Exception):
    """Like an error of an object store's driver."""


@pytest.fixture
def disk(tmp_path: Path) -> str:
    return str(tmp_path / "visits")


@pytest.fixture
def memory() -> Iterator[str]:
    """An object store, as far as fsspec has one without a server."""
    bucket = uuid.uuid4().hex
    yield f"memory://{bucket}/visits"
    for path in [path for path in MemoryFileSystem.store if path.startswith(f"/{bucket}/")]:
        del MemoryFileSystem.store[path]


STORES = [pytest.param(store, marks=pytest.mark.long) for store in ("hdfs", "s3")]
"""Real servers, of tests/integration/stores.py."""


def folder_in(request: pytest.FixtureRequest) -> str:
    place: str | Store = request.getfixturevalue(request.param)
    return place if isinstance(place, str) else place.new_url()


@pytest.fixture(params=["disk", *STORES])
def shared(request: pytest.FixtureRequest) -> Iterator[str]:
    """A folder that another process sees as well."""
    folder = folder_in(request)
    yield folder
    ledger(folder).unlink(missing_ok=True)


@pytest.fixture(params=["disk", "memory", *STORES])
def path(request: pytest.FixtureRequest) -> str:
    return folder_in(request)


@pytest.fixture
def sink(path: str) -> FileSink:
    return sink_at(path)


def left(path: str) -> list[str]:
    """Every file of a folder that no entry of the manifest names, entries apart, and empty folders of attempts."""
    shown = {file for epoch in committed_files(path) for file in epoch.files}
    store, root = fsspec.url_to_fs(path, use_listings_cache=False)
    there = {path.removesuffix(root) + one for one in store.find(root)}
    there |= {str(one) for one in Path(path, "_epochline/staging").glob("*")}
    return sorted(there - shown - {one for one in there if "/_epochline/manifest/" in one})


def process(step: str, path: str, failpoint: str) -> Forked:
    task, environment = "tests.integration.file_epochs:main", {"EPOCHLINE_FAILPOINT": failpoint}
    forked: Forked = fork_server.fork(task, step, path, environment=environment)
    return forked


def kill(step: str, path: str, failpoint: str) -> None:
    with process(step, path, f"{failpoint}:exit") as killed:
        killed.communicate()
    assert killed.returncode == KILLED


# Shown whole, and once.


def test_a_part_without_rows_has_no_file_and_an_epoch_without_rows_is_shown(sink: FileSink, path: str) -> None:
    """INV-9: an empty manifest is one, too."""
    sink.begin(ATTEMPT)
    writer = sink.write(ATTEMPT, 0)
    writer.write(batch_of([]))

    assert writer.finish() == {}

    writer.close()
    committable = seal(sink, ATTEMPT, [WrittenPart(number=0, rows=0, message={})])
    sink.commit(committable)
    sink.commit(committable)

    assert list(committed_files(path)) == [CommittedEpoch(epoch_id=1, rows=0, files=())]
    assert left(path) == []


def test_a_sink_travels_to_executors_and_a_repeated_seal_says_the_same(sink: FileSink, path: str) -> None:
    sink.begin(ATTEMPT)
    there = pickle.loads(pickle.dumps(sink))  # noqa: S301

    parts = [write_part(there, ATTEMPT, part) for part in range(PARTS)]

    assert sink.seal(ATTEMPT, parts) == sink_at(path).seal(ATTEMPT, parts)
    sink.commit(seal(sink, ATTEMPT, parts))
    assert read_visitors(path) == all_visitors(1)


def test_the_manifest_says_whose_epoch_it_is_and_what_is_in_each_file_and_moves_with_its_folder(disk: str) -> None:
    committable = committed(sink_at(disk), attempt_of(7, 2))

    entry = json.loads(Path(disk, "_epochline/manifest/0000000007.json").read_text())

    files = entry.pop("files")
    assert entry == {
        "pipeline": "visits", "generation": 1, "epoch": 7, "attempt": 2, "token": committable.attempt.token,
        "rows": PARTS * ROWS_OF_PART, "reached": [],
    }  # fmt: skip
    assert {(file["rows"], file["bytes"]) for file in files} == {
        (ROWS_OF_PART, Path(disk, file["path"]).stat().st_size) for file in files
    }
    assert {Path(file["path"]).parent.name for file in files} == {"epoch=0000000007"}

    os.rename(disk, f"{disk} elsewhere")
    assert read_visitors(f"{disk} elsewhere") == all_visitors(7)


# Parts, tried again.


def test_a_part_that_is_tried_again_or_runs_on_adds_nothing_to_what_is_shown(sink: FileSink, path: str) -> None:
    """INV-4, I4: the ledger counted the first try; a file that is half written at the seal is not moved with it."""
    parts = stage(sink, ATTEMPT)
    assert write_part(sink, ATTEMPT, 1).message["file"] != parts[1].message["file"]
    zombie = sink.write(ATTEMPT, 1)
    zombie.write(batch_of(["too late"] * 1000))

    sink.commit(seal(sink, ATTEMPT, parts))

    assert (read_visitors(path), left(path)) == (all_visitors(1), [])
    if path.startswith("/"):
        with pytest.raises(SinkUnavailableError, match="It was removed meanwhile"):
            zombie.finish()
        assert left(path) == []
    else:
        zombie.finish()
    zombie.close()
    assert read_visitors(path) == all_visitors(1)


def test_a_batch_of_other_columns_is_refused_and_the_failed_task_takes_its_file_away(sink: FileSink, path: str) -> None:
    sink.begin(ATTEMPT)
    writer = sink.write(ATTEMPT, 0)
    writer.write(batch_of(["a"]))

    with pytest.raises(EpochlineError, match="expected a batch of"):
        writer.write(batch_of(["a"]).select(["visitor"]))
    writer.close()
    writer.close()

    assert [name for name in left(path) if "part-" in name] == []


# The seal.


def test_a_seal_names_the_file_that_is_missing_or_cut(sink: FileSink, path: str) -> None:
    """INV-9: such an epoch could not commit."""
    *others, last = stage(sink, ATTEMPT)

    for message, said in (
        ({**last.message, "bytes": 1}, rf"attempt 1 of epoch 1 of visits .*{last.message['file']} has \d+ bytes of 1"),
        ({**last.message, "file": "part-00002-gone.parquet"}, r"part-00002-gone.parquet is missing"),
        ({}, r"part 2 has 40 rows, but its file has 0"),
    ):
        with pytest.raises(SealRefusedError, match=said):
            sink.seal(ATTEMPT, [*others, replace(last, message=message)])


# Crashes.


@pytest.mark.parametrize("failpoint", [name for name in failpoints_of_the_sink() if name != "files.abort"])
@pytest.mark.parametrize("times", [1, 2], ids=["recovered", "recovered twice"])
def test_a_killed_process_is_finished_by_another_and_each_row_is_there_once(
    failpoint: str, times: int, shared: str
) -> None:
    """Q5, INV-6: also between the rename and the manifest nothing is written twice. What was sealed is committed."""
    committed(sink_at(shared), attempt_of(1))
    kill("whole", shared, failpoint)
    assert read_visitors(shared) in (all_visitors(1), all_visitors(1, 2))
    assert_only_whole_folders(shared)

    for _ in range(times):
        sink = sink_at(shared)
        if ledger(shared).exists():
            sink.recover_and_commit(kept(shared))
        else:
            sink.recover_and_abort(attempt_of(2, token="0f3c8a52-one"))
            committable = sealed(sink, attempt_of(2, 2))
            keep(committable, shared)
            sink.commit(committable)

    assert (read_visitors(shared), left(shared)) == (all_visitors(1, 2), [])
    committed(sink_at(shared), attempt_of(3))
    assert read_visitors(shared) == all_visitors(1, 2, 3)


def test_a_killed_abort_is_made_good_by_the_next_one(shared: str) -> None:
    """I6, INV-7."""
    kill("abort", shared, "files.abort")
    assert left(shared) != []

    sink_at(shared).recover_and_abort(attempt_of(2, token="0f3c8a52-one"))

    assert (read_visitors(shared), left(shared)) == ([], [])


@pytest.mark.parametrize("failpoint", ["files.rename", "files.renamed", "files.manifest", "files.shown"])
def test_a_stopped_committer_that_wakes_after_a_faster_one_changes_nothing(failpoint: str, shared: str) -> None:
    """INV-5: two commit the same epoch, and a third one comes after it."""
    sink = sink_at(shared)
    committable = sealed(sink, attempt_of(2))
    keep(committable, shared)
    with process("commit", shared, f"{failpoint}:stop") as zombie:
        zombie.until_stopped()
        sink.recover_and_commit(committable)
        committed(sink, attempt_of(3))
        before = list(committed_files(shared))

        zombie.send_signal(signal.SIGCONT)
        _, said = zombie.communicate()

    assert zombie.returncode == 0, said
    assert list(committed_files(shared)) == before
    assert (read_visitors(shared), left(shared)) == (all_visitors(2, 3), [])
    assert_only_whole_folders(shared)


def test_a_commit_whose_answer_was_lost_is_found_done(memory: str, monkeypatch: Patch) -> None:
    """INV-5: the manifest is asked."""
    sink = sink_at(memory)
    committable = sealed(sink, attempt_of(1))
    put = MemoryFileSystem.pipe_file

    def lost(self: MemoryFileSystem, *args: Any, **options: Any) -> None:
        put(self, *args, **options)
        raise StoreError("no answer")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lost)
    sink.commit(committable)

    assert (read_visitors(memory), left(memory)) == (all_visitors(1), [])


def test_a_store_that_is_down_says_that_a_repeat_helps_and_it_does(memory: str, monkeypatch: Patch) -> None:
    sink = sink_at(memory)
    committable = sealed(sink, attempt_of(1))

    def down(*args: Any, **options: Any) -> None:
        raise StoreError("503")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", down)
        with pytest.raises(SinkUnavailableError, match="StoreError: 503") as said:
            sink.commit(committable)
    assert said.value.retryable
    assert read_visitors(memory) == []
    sink.commit(committable)
    assert read_visitors(memory) == all_visitors(1)


def first_is_lost(self: MemoryFileSystem, path: str, value: bytes, mode: str = "") -> None:
    self.open(path, "wb", data=value)


def condition_is_unknown(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSYS, "A header you provided implies functionality that is not implemented.")


def nothing_is_listed(self: MemoryFileSystem, path: str, detail: bool = True, **options: Any) -> list[str]:
    return []


STORES_REFUSED = {
    "overwrites a file in spite of If-None-Match": ("pipe_file", first_is_lost),
    "does not know If-None-Match": ("pipe_file", condition_is_unknown),
    "does not list a new file at once": ("ls", nothing_is_listed),
}


@pytest.mark.parametrize(("said", "broken"), STORES_REFUSED.items(), ids=STORES_REFUSED)
def test_a_store_that_could_show_an_epoch_twice_is_refused_before_anything_is_planned(
    said: str, broken: tuple[str, Any], memory: str, monkeypatch: Patch
) -> None:
    """Q5: what is not promised there is refused by the plan, not only documented."""
    sink = sink_at(memory)
    sink.prepare("visits")
    assert left(memory) == []

    monkeypatch.setattr(MemoryFileSystem, *broken)
    with pytest.raises(SinkError, match=f"files:{memory}: the store {said}.*Nothing was planned") as refused:
        sink.prepare("visits")

    assert not refused.value.retryable


def test_of_two_attempts_that_show_one_epoch_at_once_the_first_entry_stays(memory: str, monkeypatch: Patch) -> None:
    """F38, INV-5: a publisher of a ledger that went back looked at the manifest before the other one wrote its entry."""
    late, first = (sealed(sink_at(memory), attempt_of(1, number)) for number in (1, 2))
    put = MemoryFileSystem.pipe_file

    def overtaken(self: MemoryFileSystem, *args: Any, **options: Any) -> None:
        with monkeypatch.context() as undisturbed:
            undisturbed.setattr(MemoryFileSystem, "pipe_file", put)
            sink_at(memory).commit(first)
        put(self, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", overtaken)
    with pytest.raises(SinkAheadError, match="already shows epoch 1, by attempt 2"):
        sink_at(memory).commit(late)

    assert read_visitors(memory) == all_visitors(1)
    (entry,) = committed_files(memory)
    assert all("/e1_a2_" in file for file in entry.files)


def test_a_folder_that_cannot_be_and_a_store_without_a_driver_are_refused_for_good(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="NotADirectoryError") as said:
        sink_at(str(tmp_path / "file" / "visits")).begin(ATTEMPT)
    assert not said.value.retryable

    url = "nosuch://b/visits"
    stored = replace(Files(path="/data/visits", columns=COLUMNS).spec, path=url, name=f"files:{url}")
    with pytest.raises(SinkError, match=r"files:nosuch://b/visits.*Install fsspec's driver"):
        FileSink(stored)


def write_until_full(writer: FilePart) -> None:
    for _ in range(10):
        writer.write(batch_of([uuid.uuid4().hex for _ in range(1000)]))
    writer.finish()


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_disk_that_takes_no_more_says_that_a_repeat_helps_and_leaves_no_file(kind: str, disk: str) -> None:
    """F16: the limit of this process stands for the end of the disk."""
    sink = FileSink(Files(path=disk, columns=COLUMNS, aggregated=True, format=kind).spec)
    sink.begin(ATTEMPT)
    writer = sink.write(ATTEMPT, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(SinkUnavailableError, match=f"files:{disk} cannot be reached or written: OSError") as said:
            write_until_full(writer)
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert said.value.retryable
    assert [name for name in left(disk) if "part-" in name] == []


# Others in the same folder, and a ledger that went back.


def test_a_folder_of_another_pipeline_is_refused(sink: FileSink, path: str) -> None:
    late = sealed(sink, attempt_of(5, pipeline="orders"))
    committed(sink, attempt_of(1))

    with pytest.raises(SinkError, match="is written by the pipeline visits") as said:
        sink.begin(attempt_of(6, pipeline="orders"))
    assert not isinstance(said.value, SinkAheadError)
    with pytest.raises(SinkError, match="is written by the pipeline visits"):
        sink.commit(late)

    assert read_visitors(path) == all_visitors(1)


def test_a_folder_of_another_pipeline_is_refused_by_every_path_that_leads_there(disk: str, tmp_path: Path) -> None:
    """Its manifest says whose it is; no path is compared."""
    committed(sink_at(disk), attempt_of(1))
    (tmp_path / "link").symlink_to(disk)

    with pytest.raises(SinkError, match="files:.*/link is written by the pipeline visits"):
        sink_at(str(tmp_path / "link")).begin(attempt_of(2, pipeline="orders"))


@pytest.mark.parametrize("shown", [2, 3], ids=["the same epoch", "a later epoch"])
def test_a_ledger_that_went_back_in_time_is_found_out(shown: int, sink: FileSink, path: str) -> None:
    """F38: neither begun nor committed in addition to what readers have seen."""
    of_the_backup = sealed(sink, attempt_of(2, 2))
    committed(sink, attempt_of(shown))
    before = read_visitors(path)

    with pytest.raises(SinkAheadError, match=rf"already shows epoch {shown}, by attempt 1"):
        sink.begin(attempt_of(2, 3))
    with pytest.raises(SinkAheadError, match=rf"attempt 2 of epoch 2 of visits.*already shows epoch {shown}"):
        sink.commit(of_the_backup)

    assert read_visitors(path) == before


def test_a_folder_renamed_for_a_lost_ledger_is_not_taken_for_ones_own(disk: str) -> None:
    """F38: killed between rename and manifest, and then the ledger went back."""
    kill("whole", disk, "files.renamed")
    sink = sink_at(disk)
    committable = sealed(sink, attempt_of(2, 2))

    with pytest.raises(SinkAheadError, match=r"epoch=0000000002 holds other files"):
        sink.commit(committable)

    assert read_visitors(disk) == []


def test_lost_files_are_named_and_nothing_of_their_epoch_is_shown(sink: FileSink, path: str) -> None:
    committable = sealed(sink, attempt_of(1))
    store, file = fsspec.url_to_fs(f"{path}/{committable.body['folder']}/{committable.body['files'][1]['file']}")
    store.rm_file(file)

    with pytest.raises(SinkError, match=r"files of the committed epoch 1 are lost; neither _epochline/staging/e1_a1_"):
        sink.commit(committable)

    assert read_visitors(path) == []
    if path.startswith("/"):
        assert list(Path(path).glob("epoch=*")) == []


def test_a_damaged_entry_is_named(disk: str) -> None:
    committed(sink_at(disk), ATTEMPT)
    Path(disk, "_epochline/manifest/0000000001.json").write_text('{"epoch": 1}')

    with pytest.raises(SinkError, match=r"0000000001.json is not an entry of a manifest"):
        list(committed_files(disk))


def test_on_a_disk_every_step_is_synced_before_the_next(disk: str, monkeypatch: Patch) -> None:
    """Also a power cut between two steps leaves a state that recovery knows: files, then folder, then manifest."""
    steps: list[tuple[str, int, str]] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(("sync", os.fstat(descriptor).st_ino, ""))

    def renamed(old: str, new: str) -> None:
        steps.append(("rename", os.stat(old).st_ino, str(Path(new).relative_to(disk))))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    committed(sink_at(disk), attempt_of(1))

    *_, folder, entry = [at for at, (kind, _, _) in enumerate(steps) if kind == "rename"]
    assert [steps[at][2] for at in (folder, entry)] == ["epoch=0000000001", "_epochline/manifest/0000000001.json"]

    def were_synced(inodes: set[int], start: int, until: int) -> bool:
        return inodes <= {inode for kind, inode, _ in steps[start:until] if kind == "sync"}

    files = {file.stat().st_ino for file in Path(disk, "epoch=0000000001").iterdir()}
    last_file = max(at for at, step in enumerate(steps[:folder]) if step[0] == "rename")
    assert were_synced(files, 0, folder)
    assert were_synced({steps[folder][1]}, last_file, folder)
    assert were_synced({Path(disk).stat().st_ino, steps[entry][1]}, folder, entry)
    assert were_synced({Path(disk, "_epochline/manifest").stat().st_ino}, entry, len(steps))


# Readers at work.


def assert_only_whole_folders(path: str) -> None:
    for folder in sorted(Path(path).glob("epoch=*")):
        rows = [pyarrow.parquet.ParquetFile(file).metadata.num_rows for file in sorted(folder.iterdir())]
        assert rows == [ROWS_OF_PART] * PARTS


def test_readers_of_manifest_and_folders_see_whole_epochs_only_and_each_once(sink: FileSink, path: str) -> None:
    """P5, INV-2: while another thread writes, seals and commits epochs, each with a task that is tried twice."""
    seen: dict[int, list[str]] = {}
    done = threading.Event()

    def look() -> None:
        for epoch in committed_files(path, after=max(seen, default=0)):
            seen[epoch.epoch_id] = sorted(row["visitor"] for row in rows_of_files(epoch))
        assert_only_whole_folders(path)

    def look_again_and_again() -> None:
        while not done.is_set():
            look()
        look()

    with ThreadPoolExecutor() as threads:
        looking = threads.submit(look_again_and_again)
        try:
            for attempt in map(attempt_of, EPOCHS):
                parts = stage(sink, attempt)
                running_on = sink.write(attempt, 0)
                running_on.write(batch_of(["nobody"]))
                sink.commit(seal(sink, attempt, parts))
                running_on.close()
        finally:
            done.set()
    looking.result()

    assert seen == {epoch_id: all_visitors(epoch_id) for epoch_id in EPOCHS}
    if path.startswith("/"):
        assert len(list(Path(path).glob("epoch=*"))) == len(EPOCHS)


def test_a_follower_misses_no_epoch_that_was_shown_while_it_listed(memory: str, monkeypatch: Patch) -> None:
    """A listing is no snapshot: it may hold an epoch and not the one before it. Then both wait, or both are given."""
    sink = sink_at(memory)
    committed(sink, attempt_of(1))
    waiting = {epoch_id: sealed(sink, attempt_of(epoch_id)) for epoch_id in range(2, 6)}
    whole = MemoryFileSystem.ls

    def overtaken(self: MemoryFileSystem, path: str, detail: bool = True, **options: Any) -> Any:
        names = whole(self, path, detail, **options)
        if waiting and path.endswith("/_epochline/manifest"):
            missed, seen = (waiting.pop(epoch_id) for epoch_id in sorted(waiting)[:2])
            with monkeypatch.context() as undisturbed:
                undisturbed.setattr(MemoryFileSystem, "ls", whole)
                sink.commit(missed)
                sink.commit(seen)
            names = [*names, f"{path}/{seen.attempt.epoch_id:010d}.json"]
        return names

    monkeypatch.setattr(MemoryFileSystem, "ls", overtaken)

    assert [epoch.epoch_id for epoch in committed_files(memory)] == [1, 2, 3]
    assert not waiting
    assert [epoch.epoch_id for epoch in committed_files(memory, after=3)] == [4, 5]


def test_an_epoch_that_is_cleaned_up_while_a_reader_lists_is_left_out(memory: str) -> None:
    """Retention takes the entry first."""
    sink = sink_at(memory)
    for epoch_id in (1, 2):
        committed(sink, attempt_of(epoch_id))
    following = committed_files(memory)

    assert next(following).epoch_id == 1
    MemoryFileSystem().rm_file(f"{memory.removeprefix('memory:/')}/_epochline/manifest/0000000002.json")

    assert list(following) == []
