"""What must hold after every fault, in one function; and how long it took until it did, without a human."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from epochline.config.resolve import epoch_folder
from epochline.declare.external import Files
from epochline.declare.names import QUARANTINE
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.declare.topic import KafkaTopic
from epochline.postgres.ledger.savepoint_file import files_in, read_description
from tests.chains import chain_breaks
from tests.crash.line import Line
from tests.crash.shown import files_left_over, rows_in_files, values_in_topic

Query = Callable[..., list[tuple[Any, ...]]]

STILL_SECONDS = 120.0
"""For how long runs may move nothing: longer than any lease, server start or time-out of the tests."""


class Checked(Protocol):
    """A pipeline whose ledger and targets can be asked."""

    @property
    def name(self) -> str: ...
    @property
    def pipeline(self) -> Pipeline: ...
    @property
    def query(self) -> Query: ...


def recover(line: Line, *, since: float | None = None) -> None:
    """Let runs come, as a schedule would, until everything produced is committed; write down how long that took.

    It ends too when runs have moved nothing for STILL_SECONDS: no head, no epoch, no receipt.

    Args:
        line: whose runs.
        since: when the last fault was, by `time.monotonic`; now if not given.
    """
    since = time.monotonic() if since is None else since
    outcomes, seen, moved = [line.run()], _state(line), time.monotonic()
    while not _caught_up(line) and time.monotonic() - moved < STILL_SECONDS:
        outcomes.append(line.run())
        if (now := _state(line)) != seen:
            seen, moved = now, time.monotonic()
    seconds = time.monotonic() - since
    assert _caught_up(line), f"not recovered after {seconds:.0f} s: runs ended {outcomes}, heads are {line.heads()}"
    assert_exact(line)
    line.recovery.took(seconds)


def _state(line: Line) -> tuple[object, ...]:
    return line.heads(), _unfinished(line), _left_to_show(line)


def _caught_up(line: Line) -> bool:
    heads = line.heads()
    return not (_unfinished(line) or _left_to_show(line)) and all(
        heads.get(partition, 0) > offset for partition, offset in line.produced
    )


def _unfinished(line: Line) -> list[tuple[Any, ...]]:
    return line.query(
        "SELECT epoch_id, state, attempt FROM epochline.epochs WHERE state IN ('PLANNED', 'PRE_COMMITTED')"
    )


def _left_to_show(line: Line) -> list[tuple[Any, ...]]:
    """Epochs and sinks that are committed and not shown, or are not known to be."""
    asked = "SELECT epoch_id, sink, state FROM epochline.receipts WHERE pipeline = %s AND state <> 'SHOWN'"
    return line.query(asked, line.name)


def assert_exact(line: Line) -> None:
    """Target against input (I1), chain (I2), counts (I4), nothing left over (I6)."""
    assert_set(line)
    assert_state(line)
    assert_epoch_file(line)
    assert_chain(line)
    assert_counts(line)
    assert_nothing_left_over(line)


def assert_set(line: Line) -> None:
    """I1: target rows and dead letters together are the records that were produced, one copy each, in every table."""
    asked = 'SELECT partition, "offset", value FROM epochline.quarantine WHERE pipeline = %s'
    bad = Counter((partition, offset, bytes(value)) for partition, offset, value in line.query(asked, line.name))
    expected = Counter((partition, offset, value) for (partition, offset), value in line.produced.items())
    for sink in line.pipeline.sinks:
        if sink.aggregated:
            continue
        if isinstance(sink, KafkaTopic):
            assert_topic(line, sink, expected - bad)
            continue
        if isinstance(sink, Files):
            rows = rows_in_files(sink)
        else:
            assert isinstance(sink, PostgresTable)
            shown = line.query(f"SELECT _partition, _offset, value FROM {sink.table}")
            rows = Counter((partition, offset, value.encode()) for partition, offset, value in shown)
        found = rows + bad
        assert found == expected, (
            f"{sink}: missing {list((expected - found).items())[:3]}, extra {list((found - expected).items())[:3]}"
        )


def assert_topic(line: Line, topic: KafkaTopic, expected: Counter[tuple[int, int, bytes]]) -> None:
    """I1: what consumers of committed records see, which carries no position; once, unless that was waived (K16)."""
    values = Counter(value for _partition, _offset, value in expected.elements())
    found = values_in_topic(line.bootstrap, topic.topic)
    if topic.semantics == "at_least_once":
        assert found.keys() == values.keys()
        assert not values - found
    else:
        assert found == values, f"{topic}: missing {list(values - found)[:3]}, extra {list(found - values)[:3]}"


def assert_state(line: Line) -> None:
    """INV-2, S14: what an epoch counted on from the one before counts every committed record once."""
    for sink in line.pipeline.tables:
        if sink.mode == "upsert":
            committed = "SELECT coalesce(sum(until_offset - start_offset), 0) FROM epochline.committed_ranges"
            ((offsets,),) = line.query(f"{committed} WHERE pipeline = %s AND start_offset IS NOT NULL", line.name)
            assert line.query(f"SELECT records FROM {sink.table}") == ([(offsets,)] if offsets else [])


def assert_epoch_file(line: Line) -> None:
    """C11: the newest committed epoch has its file, with the heads that the ledger has."""
    declared = line.pipeline.settings.epoch_files
    if declared is None:
        return
    folder = epoch_folder(declared, line.name)
    newest, file = list(files_in(folder).items())[-1]
    committed = "SELECT max(epoch_id) FROM epochline.epochs WHERE pipeline = %s AND state = 'COMMITTED'"
    assert [(newest,)] == line.query(committed, line.name)
    with file.open("rb") as source:
        savepoint, _, _ = read_description(source)
    assert {head.tp.partition: head.next_offset for head in savepoint.heads} == line.heads()
    assert not [path for path in folder.iterdir() if path.name.startswith(".epoch-") and f"-{newest}." not in path.name]


def assert_chain(line: Checked) -> None:
    """I2: per partition one interval from origin to head."""
    chains: dict[tuple[str, int], list[tuple[int | None, int]]] = defaultdict(list)
    asked = "SELECT topic_id, partition, start_offset, until_offset FROM epochline.committed_range WHERE pipeline = %s"
    for topic_id, partition, start, until in line.query(asked, line.name):
        chains[topic_id, partition].append((start, until))
    assert {key: chain_breaks(ranges) for key, ranges in chains.items() if chain_breaks(ranges)} == {}


def assert_counts(line: Checked) -> None:
    """I4: of every committed epoch, rows in the target = manifest = sum of parts, and the records balance."""
    for epoch_id, kind, attempt, written, read, passed, skipped, quarantined in line.query(
        "SELECT epoch_id, kind, attempt, rows_written, records_read, records_passed, records_skipped,"
        " records_quarantined"
        " FROM epochline.epoch WHERE pipeline = %s AND state = 'COMMITTED' AND undone_by IS NULL", line.name
    ):  # fmt: skip
        receipts = "SELECT sink, rows FROM epochline.receipts WHERE pipeline = %s AND epoch_id = %s"
        shown: dict[str, int] = dict(line.query(receipts, line.name, epoch_id))
        external = {sink.name: shown[sink.name] for sink in line.pipeline.external}
        in_targets = {box.table: shown[box.topic.name] for box in line.pipeline.outboxes} | external
        for sink in line.pipeline.tables:
            if sink.table not in in_targets:
                # Of an upsert one row says how many records there have been, whichever epoch said so last.
                rows = f"SELECT count(*) FROM {sink.table} WHERE _epoch = %s"
                in_targets[sink.table] = 1 if sink.mode == "upsert" else line.query(rows, epoch_id)[0][0]
        # A record that a requeue quarantines again stays where the epoch that quarantined it first put it.
        in_targets[QUARANTINE] = quarantined if kind == "requeue" else line.query(
            "SELECT count(*) FROM epochline.quarantine WHERE pipeline = %s AND epoch_id = %s", line.name, epoch_id
        )[0][0]  # fmt: skip
        assert _of_attempt(line, "manifest", "max(rows)", epoch_id, attempt) == in_targets
        assert _of_attempt(line, "part", "sum(rows)::bigint", epoch_id, attempt) == in_targets
        ranges = line.query(
            "SELECT sum(records_read)::bigint, sum(records_passed)::bigint, sum(records_skipped)::bigint,"
            " sum(records_quarantined)::bigint FROM epochline.planned_range WHERE pipeline = %s AND epoch_id = %s",
            line.name, epoch_id,
        )[0]  # fmt: skip
        if kind != "requeue":  # … which has no range
            assert tuple(count or 0 for count in ranges) == (read, passed, skipped, quarantined)
        assert read == passed + skipped + quarantined
        assert quarantined == in_targets[QUARANTINE]
        assert written == sum(rows for sink, rows in in_targets.items() if sink not in (QUARANTINE, *external))


def _of_attempt(line: Checked, table: str, what: str, epoch_id: int, attempt: int) -> dict[str, Any]:
    asked = (
        f"SELECT sink, {what} FROM epochline.{table} JOIN epochline.attempt USING (attempt_id)"
        " WHERE pipeline = %s AND epoch_id = %s AND attempt = %s GROUP BY sink"
    )
    return dict(line.query(asked, line.name, epoch_id, attempt))


def assert_nothing_left_over(line: Line) -> None:
    """I6: no staging, no open transaction or prepared one, no session of a writer, nothing unfinished or to be shown."""
    assert _left_to_show(line) == []
    assert files_left_over(line.pipeline) == []
    for box in line.pipeline.outboxes:
        schema, table = box.table.split(".")
        assert line.query(f'SELECT * FROM "{schema}"."{table}"') == []
    assert line.query("SELECT tablename FROM pg_tables WHERE schemaname = 'epochline_staging'") == []
    assert line.query("SELECT table_name FROM epochline.staging WHERE dropped_at IS NULL") == []
    assert line.query("SELECT gid FROM pg_prepared_xacts") == []
    assert line.query(
        "SELECT application_name, state FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND application_name LIKE 'epochline%' AND xact_start IS NOT NULL"
    ) == []  # fmt: skip
    assert _unfinished(line) == []
