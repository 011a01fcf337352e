"""`epochline audit` of folders of files, on a real PostgreSQL and Kafka: every file, every manifest entry, every row."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from epochline import Files, Json
from tests.integration.auditing import Audit
from tests.integration.sinks_world import SinksPipeline, new_world

COLUMNS = {
    "n": "bigint", "name": "text", "price": "numeric", "cents": "numeric(12,2)", "seen": "timestamptz", "day": "date",
    "raw": "jsonb", "ratio": "double precision", "clock": "time",
}  # fmt: skip


def record(number: int) -> str:
    one: dict[str, Any] = {
        "n": number, "name": None if number % 4 == 0 else "" if number % 4 == 1 else f'"ä,\n{number}', "price": "1.50",
        "cents": "7.10", "seen": "2024-02-29T01:02:03Z", "day": "9999-12-31", "raw": {"b": [1, 2.0]}, "ratio": 0.1,
        "clock": "12:00:00",
    }  # fmt: skip
    return json.dumps(one)


@pytest.fixture(params=["parquet", "csv", "json"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def new(dsn: str, bootstrap: str, folder: Path | str, form: str = "json") -> SinksPipeline:
    """Epochs 2 and 3: an operator aborted epoch 1, and the publisher of epoch 2 died twice."""
    one = new_world(
        dsn, bootstrap, Files(path=str(folder), columns=COLUMNS, format=form), parse=Json(columns=COLUMNS), table=False,
        bad_records="quarantine",
    )  # fmt: skip
    one.produce(*map(record, range(8)), "{poison")
    _, run, _ = one.it.staged()
    one.it.abort(1, run.run_id)
    one.it.epoch()
    one.killed_at("files.rename")
    one.killed_at("files.shown")
    one.it.publish()
    one.produce(*map(record, range(8, 12)))
    one.it.epoch()
    one.it.publish()
    return one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "visits"


@pytest.fixture
def world(postgres_dsn: str, kafka_bootstrap: str, folder: Path) -> SinksPipeline:
    return new(postgres_dsn, kafka_bootstrap, folder)


def name_of(world: SinksPipeline) -> str:
    return world.it.pipeline.external[0].name


def file_of(folder: Path, epoch: int) -> Path:
    (found,) = folder.glob(f"epoch={epoch:010d}/*")
    return found


def entry_of(folder: Path, epoch: int) -> Path:
    return folder / f"_epochline/manifest/{epoch:010d}.json"


@pytest.mark.slow
def test_files_are_exact_after_aborts_retries_and_dead_publishers(
    postgres_dsn: str, kafka_bootstrap: str, folder: Path, audit: Audit, form: str
) -> None:
    """INV-5, INV-9: every value of each format is read back; an epoch that is not shown yet is no difference."""
    world = new(postgres_dsn, kafka_bootstrap, folder, form)
    assert audit(world) == (0, [], [])
    world.produce(record(20))
    world.it.epoch()
    assert audit(world) == (0, [], [])
    world.it.publish()
    path = file_of(folder, 3)
    damaged = path.read_bytes()
    path.write_bytes(damaged[:-9])

    code, differences, _ = audit(world)

    assert code == 1
    (where, kind, _, _, said), *_ = differences
    assert (where, kind) == (name_of(world), "changed")
    assert said.startswith(f"epoch=0000000003/{path.name}: {len(damaged)} bytes were sealed, it has {len(damaged) - 9}")


@pytest.mark.slow
def test_rows_that_were_changed_in_a_file_are_named_by_their_record(
    world: SinksPipeline, folder: Path, audit: Audit
) -> None:
    """Of the same length, so that the file's size tells nothing; one lost, one twice, one of no record."""
    path = file_of(folder, 2)
    lines = path.read_text().splitlines(keepends=True)
    lines[0] = lines[0].replace('"price":1.50', '"price":1.51').replace("7.10", "7.11")
    lost, lines[1] = lines[1], lines[2]
    lines[3] = lines[3].replace('"_offset":', '"_offset":9')
    path.write_text("".join(lines))

    code, differences, _ = audit(world)

    assert code == 1
    (size,) = [one for one in differences if one[2] is None]
    assert size[1] == "changed"
    place = [(one["_partition"], one["_offset"]) for one in map(json.loads, [*lines[:4], lost])]
    was = (place[3][0], int(str(place[3][1])[1:]))
    name = name_of(world)
    assert sorted(one for one in differences if one[2] is not None) == sorted(
        [
            (name, "changed", *place[0], "price, cents"), (name, "doubled", *place[1], None),
            (name, "missing", *place[4], None), (name, "missing", *was, None), (name, "extra", *place[3], None),
        ],
        key=str,
    )  # fmt: skip


def test_a_lost_a_doubled_and_a_strange_file_are_named(world: SinksPipeline, folder: Path, audit: Audit) -> None:
    """The rows of an epoch whose file is gone are not listed one by one."""
    first, second = (file_of(folder, epoch) for epoch in (2, 3))
    shutil.copy(second, second.with_name("again.json"))
    shutil.copytree(second.parent, folder / "epoch=0000000009")
    shutil.copy(entry_of(folder, 3), entry_of(folder, 9))
    first.unlink()

    code, differences, _ = audit(world)

    name = name_of(world)
    assert code == 1
    assert differences == [
        (name, "missing", None, None, f"epoch=0000000002/{first.name}"),
        (name, "extra", None, None, "epoch=0000000003/again.json is in no manifest entry"),
        (name, "extra", None, None, "_epochline/manifest/0000000009.json: the ledger knows no such epoch"),
        (name, "extra", None, None, "epoch=0000000009: the ledger knows no such epoch"),
    ]
    assert audit(world, "--epochs", "3")[1] == differences[1:2]


@pytest.mark.slow
def test_a_manifest_that_was_altered_is_told_from_the_ledger(world: SinksPipeline, folder: Path, audit: Audit) -> None:
    """The ledger names each file, too: another number, a file that is left out, a truncated entry, one that is gone."""
    entry, name, file = entry_of(folder, 3), name_of(world), file_of(folder, 3).name
    path, kept = "_epochline/manifest/0000000003.json", json.loads(entry_of(folder, 3).read_text())
    digested = json.dumps(kept | {"rows": 3})
    del kept["reached"][-1]["digest"]  # as older versions wrote it

    def found(text: str | None) -> list[tuple[str, str]]:
        entry.unlink(missing_ok=True)
        if text is not None:
            entry.write_text(text)
        code, differences, _ = audit(world)
        assert {one[0] for one in differences} <= {name}
        assert code == bool(differences)
        return [(one[1], one[4]) for one in differences]

    bytes_ = kept["files"][0]["bytes"]
    other = {**kept["files"][0], "rows": 3}
    assert found(json.dumps(kept | {"rows": 3, "files": [other]})) == [
        ("count", f"{path}: 4 rows were sealed, it says 3"),
        ("changed", f"{path}: epoch=0000000003/{file}: 4 rows in {bytes_} bytes were sealed, it says 3 in {bytes_}"),
    ]
    assert found(json.dumps(kept | {"files": []})) == [("missing", f"epoch=0000000003/{file} is not in {path}")]
    assert found(json.dumps(kept | {"files": kept["files"] * 2})) == [
        ("doubled", f"epoch=0000000003/{file} is in {path} 2 times")
    ]
    assert found(json.dumps(kept)[:60])[0][1].startswith(f"{path} is damaged: ")
    assert found(digested) == [("changed", f"{path} is damaged: its values are not those of its digest")]
    assert found(None) == [("missing", path)]
    assert found(json.dumps(kept)) == []


@pytest.mark.slow
def test_epochs_that_were_removed_as_the_page_says_are_not_judged(
    world: SinksPipeline, folder: Path, audit: Audit
) -> None:
    """The oldest ones first, the entry before the files."""
    entry_of(folder, 2).unlink()
    assert audit(world)[:2] == (3, [])
    shutil.rmtree(folder / "epoch=0000000002")
    assert audit(world)[:2] == (3, [])


@pytest.mark.slow
def test_files_of_a_store_are_compared(postgres_dsn: str, kafka_bootstrap: str, audit: Audit) -> None:
    """Where nothing is renamed; a folder of which nothing is there any more."""
    import fsspec

    files = Files(path="memory://bucket/visits", columns={"n": "bigint"})
    world = new_world(postgres_dsn, kafka_bootstrap, files, parse=Json(columns={"n": "bigint"}), table=False)
    world.epoch('{"n": 1}', '{"n": 2}')
    world.it.publish()
    assert audit(world) == (0, [], [])
    store = fsspec.filesystem("memory")
    (file,) = (one for one in store.find("/bucket/visits") if one.endswith(".parquet"))
    store.copy(file, file.replace("part-00000", "part-00009"))
    code, differences, notes = audit(world)
    assert (code, differences) == (0, [])
    assert notes[0].endswith("is in no manifest entry")
    store.rm("/bucket", recursive=True)

    assert [one[1] for one in audit(world)[1]] == ["missing"]
