"""Bytes that rot: a staged row, a file, a manifest, a count of the ledger. Found before they show, or by the next audit."""

import io
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochline import Files, Json, KafkaSource, Pipeline, PostgresTable
from epochline.errors import LedgerError, SavepointFileError, SinkError, StagingLostError, StateError
from epochline.local.stack import Stack
from epochline.postgres.ledger.savepoint_file import check_rows, read_description
from epochline.protocol.epoch import Run
from epochline.protocol.offsets import stored_heads
from epochline.sinks.file_manifest import ManifestEntry
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.databases import query
from tests.integration.auditing import NothingLeft, audited
from tests.integration.counting import Counting
from tests.integration.in_process import InProcess, over_records
from tests.integration.logins import superuser, superuser_of
from tests.integration.operating import act

COLUMNS = {
    "n": "integer", "name": "text", "price": "numeric", "ratio": "double precision", "seen": "timestamptz", "doc": "jsonb",
    "raw": "bytea", "tags": "text[]", "cents": "numeric(12,2)", "flag": "boolean",
}  # fmt: skip
PAST_TRIGGERS = "SET session_replication_role = replica; "


def record(n: int) -> dict[str, Any]:
    return {
        "n": n, "name": f"straße {n}", "price": "1.50", "ratio": 0.0, "seen": "2026-01-01T00:00:00Z", "doc": {"a": 1.0},
        "raw": "AAEC", "tags": ["a", None], "cents": "7.10", "flag": True,
    }  # fmt: skip


def pipeline(name: str, *sinks: Any, **declared: Any) -> Pipeline:
    return Pipeline(
        name=name, source=KafkaSource(topics="records"), parse=Json(columns=COLUMNS), bad_records="quarantine",
        sinks=sinks or (PostgresTable(table="t", columns=COLUMNS),), **declared,
    )  # fmt: skip


def staging_of(line: InProcess, sink: str = "t") -> str:
    """The newest staging table of a sink."""
    newest = "SELECT table_name FROM epochline.staging WHERE sink = %s AND dropped_at IS NULL ORDER BY attempt_id DESC"
    return str(line.sql(f"{newest} LIMIT 1", sink)[0][0])


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


CHANGES = {
    "n": "n = n + 65536", "name": "name = 'strasse 0'", "price": "price = 1.500", "ratio": "ratio = '-0'",
    "seen": "seen = seen + interval '1 microsecond'", "doc": """doc = '{"a": 1.00}'""", "raw": r"raw = '\x000103'",
    "tags": "tags = '{a,NULL,NULL}'", "cents": "cents = NULL", "flag": "flag = false", "_offset": "_offset = 7",
}  # fmt: skip
"""Each gives a value that differs, though PostgreSQL may call it equal to the old one."""


@pytest.mark.fault("F62")
def test_a_staged_row_that_changes_after_the_seal_is_found_by_the_commit_and_its_range_is_read_again(
    postgres_dsn: str, stack: Stack, recovery: Recovery
) -> None:
    """INV-6, INV-9: whatever the column; nothing of the epoch is visible, and the next attempt is right."""
    records = [record(n) for n in range(3)]
    line = over_records(postgres_dsn, pipeline("rot"), records)
    planned, run, _ = line.sealed()
    for column, change in CHANGES.items():
        table = f'epochline_staging."{staging_of(line)}"'
        statement = f"{PAST_TRIGGERS}UPDATE {table} SET {change} WHERE _offset = 0 RETURNING 1"
        assert query(superuser(stack, postgres_dsn), statement) == [(1,)]

        with pytest.raises(
            StagingLostError, match=r"3 rows were sealed for t, but its staging table holds other values"
        ):
            line.commit(planned)

        assert line.sql("SELECT state FROM epochline.epochs") == [("ABORTED",)], column
        assert line.sql("SELECT count(*) FROM t") == [(0,)]
        planned = line.plan(run)
        line.staged_and_sealed(planned, run)
    line.commit(planned)
    recovery.took()
    assert line.sql("SELECT n, name, price::text, ratio::text, flag FROM t ORDER BY n") == [
        (n, f"straße {n}", "1.50", "0", True) for n in range(3)
    ]


def read_again(line: InProcess, run: Run) -> None:
    """The next try of the run stages its range again, and commits it."""
    planned = line.plan(run)
    line.staged_and_sealed(planned, run)
    line.commit(planned)


@pytest.mark.fault("F62")
def test_a_quarantined_record_that_changes_after_the_seal_is_found_too(postgres_dsn: str, recovery: Recovery) -> None:
    """INV-9: it would be requeued as another record."""
    line = over_records(postgres_dsn, pipeline("rot"), [record(0), b"no JSON"])
    planned, run, _ = line.sealed()
    line.sql(f"""UPDATE epochline_staging."{staging_of(line, "_quarantine")}" SET value = 'no JSOM' RETURNING 1""")

    with pytest.raises(StagingLostError, match="_quarantine, but its staging table holds other values"):
        line.commit(planned)

    read_again(line, run)
    recovery.took()
    assert line.sql("SELECT convert_from(value, 'UTF8') FROM epochline.quarantine") == [("no JSON",)]


@pytest.fixture
def without_checksums(server: Server) -> Iterator[Callable[[str, str, bytes], None]]:
    """Flips a bit of a table's file, on a server whose pages have no checksums as before PostgreSQL 18."""
    server.postgres.stop()
    server._run("pg_checksums", "--disable")
    server.start()

    def flip(dsn: str, table: str, value: bytes) -> None:
        [(path,)] = query(dsn, "SELECT pg_relation_filepath(%s::regclass)", table)
        server.admin("CHECKPOINT")
        server.postgres.stop()
        file = server.postgres.data / path
        data = file.read_bytes()
        assert data.count(value) == 1
        file.write_bytes(flipped(data, data.index(value)))
        server.start()

    yield flip
    server.postgres.stop()
    server._run("pg_checksums", "--enable")
    server.start()


@pytest.mark.fault("F62")
@pytest.mark.slow
def test_a_bit_that_flips_on_the_disk_under_a_staged_row_is_found_by_the_commit(
    server: Server, without_checksums: Callable[..., None], recovery: Recovery
) -> None:
    """INV-6, INV-9: PostgreSQL itself finds it where its pages have checksums."""
    line = over_records(server.new_database(), pipeline("rot"), [record(n) for n in range(3)])
    planned, run, _ = line.sealed()
    without_checksums(line.dsn, f'epochline_staging."{staging_of(line)}"', "straße 1".encode())
    table = f'epochline_staging."{staging_of(line)}"'
    assert line.sql(f"SELECT count(*) FROM {table} WHERE name = 'rtraße 1'") == [(1,)]
    recovery.last_fault()

    with pytest.raises(StagingLostError, match="its staging table holds other values"):
        line.commit(planned)

    read_again(line, run)
    recovery.took()
    assert line.sql("SELECT name FROM t ORDER BY n") == [(f"straße {n}",) for n in range(3)]


FORMS = ("json", "csv", "parquet")


def with_files(dsn: str, folder: Path, form: str, records: list[Any]) -> InProcess:
    files = Files(path=str(folder), columns=COLUMNS, format=form)
    return over_records(dsn, pipeline("rot", PostgresTable(table="t", columns=COLUMNS), files), records)


def rot(file: Path) -> bytes:
    """Flip a bit of a value in a file, which keeps its size; gives what it held."""
    data, value = file.read_bytes(), "straße 1".encode()
    # Parquet may have compressed the value.
    file.write_bytes(flipped(data, data.index(value) if value in data else len(data) // 4))
    return data


@pytest.mark.fault("F62")
@pytest.mark.parametrize("form", FORMS)
def test_a_byte_that_flips_in_a_sealed_file_stops_the_commit_and_in_a_committed_one_its_showing(
    postgres_dsn: str, tmp_path: Path, form: str, recovery: Recovery
) -> None:
    """INV-5, INV-9: the size tells nothing. Neither table nor folder shows a row; put back, the file is shown."""
    line = with_files(postgres_dsn, tmp_path / "out", form, [record(n) for n in range(2)])
    planned, _, _ = line.sealed()
    [file] = (tmp_path / "out").rglob(f"sealed/*.{form}")
    was = rot(file)
    with pytest.raises(
        SinkError, match="holds other bytes than were written: .* Nothing was committed.*epochline abort rot 1"
    ):
        line.commit(planned)
    assert line.sql("SELECT count(*) FROM t") == [(0,)]

    file.write_bytes(was)
    line.commit(planned)
    rot(file)
    with pytest.raises(SinkError, match="holds other bytes than were written: .* Nothing was shown"):
        line.publish()
    assert not list((tmp_path / "out").glob("epoch=*"))

    file.write_bytes(was)
    line.publish()
    recovery.took()
    [shown] = (tmp_path / "out").glob(f"epoch=0000000001/*.{form}")
    assert shown.read_bytes() == was


@pytest.mark.fault("F62")
@pytest.mark.parametrize("form", FORMS)
def test_a_byte_that_flips_in_a_shown_file_is_found_by_an_audit_though_kafka_has_no_record_any_more(
    postgres_dsn: str, tmp_path: Path, form: str
) -> None:
    """INV-9: by the digest that the ledger has of the file."""
    line = with_files(postgres_dsn, tmp_path / "out", form, [record(n) for n in range(2)])
    line.epoch()
    line.publish()
    assert audited(postgres_dsn, "rot", NothingLeft()) == []
    [file] = (tmp_path / "out").glob(f"epoch=*/*.{form}")

    rot(file)

    [found] = audited(postgres_dsn, "rot", NothingLeft())
    assert "its bytes are not those that were written" in found


def test_no_bit_of_a_manifest_entry_flips_unnoticed(postgres_dsn: str, tmp_path: Path) -> None:
    """INV-8: after a lost ledger, its offsets say what is not read again."""
    line = with_files(postgres_dsn, tmp_path / "out", "json", [record(0)])
    line.epoch()
    line.publish()
    data = (tmp_path / "out/_epochline/manifest/0000000001.json").read_bytes()
    entry = ManifestEntry.from_json(data)
    assert entry.reached[0]["next"] == {"0": 1}  # type: ignore[index]

    for at in range(len(data)):
        for bit in range(8):
            try:
                now = ManifestEntry.from_json(flipped(data, at, bit))
            except ValueError:
                continue
            # White space, and the name of the digest itself, without which it is an older version's entry.
            assert now in (entry, replace(entry, reached=now.reached)), (at, bit)
            assert stored_heads(now.reached or ()) == stored_heads(entry.reached or ())


def test_no_byte_of_an_epochs_file_flips_unnoticed(postgres_dsn: str, stack: Stack) -> None:
    """C11, C13, INV-8: whatever the byte, the import refuses the file by name or gives the same savepoint and state."""
    counting = Counting(postgres_dsn, superuser(stack, postgres_dsn))
    counting.epoch({"word": "a", "count": 1}, {"word": "b", "count": 2})
    act(counting, "savepoint", name="one")
    with counting.ledger.transaction() as tx:
        kept = tx.savepoints.find("orders", "one")
        assert kept is not None
        tx.savepoints.export(kept, file := io.BytesIO())
    data = file.getvalue()
    kept = read_description(io.BytesIO(data))[0]

    said = Counter[str]()
    for at in range(len(data)):
        source = io.BytesIO(flipped(data, at, at % 8))
        try:
            savepoint, _, states = read_description(source)
            for state in states:
                check_rows(source, state)
            with zipfile.ZipFile(source) as archive:
                rows = b"".join(archive.read(state["file"]) for state in states)
        except SavepointFileError:
            said["refused"] += 1
        else:
            assert (savepoint, rows) == (kept, b"a\t1\t1\nb\t2\t1\n"), at
            said["same"] += 1
    assert said["refused"] > len(data) // 2


@pytest.mark.fault("F62")
@pytest.mark.slow
def test_state_that_rots_on_the_disk_is_kept_in_no_savepoint_and_no_file(
    server: Server, without_checksums: Callable[..., None], tmp_path: Path, recovery: Recovery
) -> None:
    """S14, INV-9: no trigger sees it. An audit finds it, and the savepoint from before brings it back."""
    dsn = server.new_database()
    counting = Counting(dsn, superuser_of(server.postgres.superuser_dsn, dsn))
    counting.epoch({"word": "rotten", "count": 1}, {"word": "b", "count": 2})
    act(counting, "savepoint", name="one")
    without_checksums(dsn, "words", b"rotten")
    recovery.last_fault()

    [found] = counting.audited()
    assert "words" in found
    with pytest.raises(StateError, match="was changed outside of epochs"):
        act(counting, "savepoint", name="two")
    with (
        pytest.raises(SavepointFileError, match="the rows of words are not those"),
        counting.ledger.transaction() as tx,
    ):
        tx.savepoints.leave_file(counting.pipeline, tmp_path, keep=3)
    assert list(tmp_path.iterdir()) == []

    act(counting, "restore", name="one")
    recovery.took()
    assert counting.counts() == [("b", 2), ("rotten", 1)]
    assert counting.audited() == []


@pytest.mark.fault("F62")
@pytest.mark.slow
def test_state_that_rotted_can_be_corrected_by_hand_or_accepted(
    server: Server, without_checksums: Callable[..., None], recovery: Recovery
) -> None:
    """S14: the correction's trigger counts out a row that was never counted in, so the table is read whole."""
    dsn = server.new_database()
    counting = Counting(dsn, superuser_of(server.postgres.superuser_dsn, dsn))
    counting.epoch({"word": "rotten", "count": 1}, {"word": "b", "count": 2})
    without_checksums(dsn, "words", b"rotten")
    recovery.last_fault()

    counting.sql("UPDATE words SET word = 'rotten' WHERE word <> 'b'")

    counting.epoch({"word": "b", "count": 5})
    recovery.took()
    assert counting.audited() == []
    without_checksums(dsn, "words", b"rotten")
    assert counting.audited() != []
    act(counting, "accept-state")
    assert counting.audited() == []
    counting.epoch({"word": "b", "count": 6})
    assert counting.audited() == []


COUNTS = {
    "epoch": ("records_read = records_read - 1, records_passed = records_passed - 1", "its counts of records are not the sums"),
    "planned_range": (
        "records_read = records_read - 1, records_passed = records_passed - 1", "its counts of records are not the sums",
    ),
    "committed_range": ("until_offset = until_offset - 1", r"its range begins at 4, the one before ends at 3"),
    "attempt": ("rows_staged = 7", "attempt 1: 7 rows were sealed, its manifests say 2"),
    "manifest": ("rows = 7", "the manifest says 7 rows in 1 parts, the parts say 2 in 1"),
    "part": ("rows = 7", "the manifest says 2 rows in 1 parts, the parts say 7 in 1"),
    "receipt": ("rows = 7", "t: the receipt says 7 rows, the manifest 2"),
}  # fmt: skip
"""By table, what rots in it, and what an audit says of that."""


@pytest.mark.fault("F62")
def test_a_count_of_the_ledger_that_changes_past_its_constraints_is_found_by_an_audit(
    postgres_dsn: str, stack: Stack
) -> None:
    """INV-9: the ledger says it in another place too, so that no record of Kafka is needed."""
    line = over_records(postgres_dsn, pipeline("rot"), [record(n) for n in range(6)])
    for _ in range(3):
        line.epoch(record_limit=2)
    admin = superuser(stack, postgres_dsn)
    assert audited(postgres_dsn, "rot", NothingLeft()) == []

    for name, (change, said) in COUNTS.items():
        table = f"epochline.{name} WHERE " + (
            "attempt_id = 2 AND sink = 't'" if name in ("manifest", "part") else "epoch_id = 2"
        )
        query(admin, f"CREATE TABLE aside AS SELECT * FROM {table}")
        update = table.replace("WHERE", f"SET {change} WHERE")
        assert query(admin, f"{PAST_TRIGGERS}UPDATE {update} RETURNING 1") == [(1,)], name

        found = "\n".join(audited(postgres_dsn, "rot", NothingLeft()))

        assert re.search(said, found), (name, found)
        again = f"INSERT INTO epochline.{name} OVERRIDING SYSTEM VALUE SELECT * FROM aside"
        query(admin, f"{PAST_TRIGGERS}DELETE FROM {table}; {again}; DROP TABLE aside")
    assert audited(postgres_dsn, "rot", NothingLeft()) == []


@pytest.mark.fault("F62")
@pytest.mark.parametrize("change", [-1, 1])
def test_a_head_that_changes_past_its_constraints_stops_the_plan(postgres_dsn: str, stack: Stack, change: int) -> None:
    """INV-1, INV-3: a record would be read twice, or never."""
    line = over_records(postgres_dsn, pipeline("rot"), [record(n) for n in range(6)])
    line.epoch(record_limit=3)
    head = "UPDATE epochline.committed_range SET until_offset = until_offset + %s WHERE epoch_id = 1 RETURNING 1"
    query(superuser(stack, postgres_dsn), PAST_TRIGGERS + head, change)

    with pytest.raises(
        LedgerError, match=f"planned up to offset 3 of records-0, and its head is {3 + change}.*audit rot"
    ):
        line.planned()

    query(superuser(stack, postgres_dsn), PAST_TRIGGERS + head, -change)
    line.epoch()
    assert line.sql("SELECT n FROM t ORDER BY n") == [(n,) for n in range(6)]
