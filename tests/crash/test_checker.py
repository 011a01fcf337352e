"""X13: exactly once is judged at the sink, and the suite's checker finds what it is there to find."""

from collections.abc import Callable

import pytest

from tests.checker import assert_chain, assert_counts, assert_nothing_left_over, assert_set
from tests.crash.line import Line
from tests.crash.servers import Server
from tests.databases import query

PLANTED: dict[str, tuple[Callable[[Line], None], str]] = {
    "a row lost": (assert_set, "DELETE FROM {0} WHERE (_partition, _offset) = (0, 3)"),
    "a row twice": (assert_set, "INSERT INTO {0} SELECT * FROM {0} WHERE (_partition, _offset) = (0, 3)"),
    "a row altered": (assert_set, "UPDATE {0} SET value = 'x' WHERE (_partition, _offset) = (0, 3)"),
    "a dead letter lost": (assert_set, "DELETE FROM epochline.quarantined_record"),
    "a row of another epoch": (assert_counts, "UPDATE {0} SET _epoch = 7 WHERE _offset = 3"),
    "a count wrong": (assert_counts, "UPDATE epochline.epoch SET rows_written = rows_written + 1"),
    "a manifest wrong": (assert_counts, "UPDATE epochline.manifest SET rows = rows + 1 WHERE sink = '{0}'"),
    "a part lost": (assert_counts, "DELETE FROM epochline.part WHERE spark_partition = 0"),
    "staging left over": (assert_nothing_left_over, "CREATE TABLE epochline_staging.left_over ()"),
    "an epoch unfinished": (
        assert_nothing_left_over,
        "INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, dag_id, run_id, host, declaration_hash,"
        " lease_until) SELECT pipeline, 9, generation, 'PLANNED', dag_id, run_id, host, declaration_hash, lease_until"
        " FROM epochline.epoch",
    ),
    "a broken chain": (
        assert_chain,
        "ALTER TABLE epochline.committed_range DISABLE TRIGGER ALL; DELETE FROM epochline.committed_range"
        " WHERE start_offset IS NULL",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_in_a_sound_database_is_found(line: Line, server: Server, what: str) -> None:
    """I1, I2, I4, I6."""
    check, statement = PLANTED[what]
    assert line.run() == "success"
    check(line)
    query(server.postgres.superuser_dsn, statement.format(line.name), dbname=line.dsn.rpartition("/")[2])

    with pytest.raises(AssertionError):
        check(line)
