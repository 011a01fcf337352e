"""The suite's checker finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash import checker
from tests.crash.line import Line
from tests.crash.servers import Server

PLANTED: dict[str, tuple[Callable[[Line], None], str]] = {
    "a row lost": (checker.assert_set, "DELETE FROM {0} WHERE (_partition, _offset) = (0, 3)"),
    "a row twice": (checker.assert_set, "INSERT INTO {0} SELECT * FROM {0} WHERE (_partition, _offset) = (0, 3)"),
    "a row altered": (checker.assert_set, "UPDATE {0} SET value = 'x' WHERE (_partition, _offset) = (0, 3)"),
    "a dead letter lost": (checker.assert_set, "DELETE FROM epochline.quarantined_record"),
    "a row of another epoch": (checker.assert_counts, "UPDATE {0} SET _epoch = 7 WHERE _offset = 3"),
    "a count wrong": (checker.assert_counts, "UPDATE epochline.epoch SET rows_written = rows_written + 1"),
    "a manifest wrong": (checker.assert_counts, "UPDATE epochline.manifest SET rows = rows + 1 WHERE sink = '{0}'"),
    "a part lost": (checker.assert_counts, "DELETE FROM epochline.part WHERE spark_partition = 0"),
    "staging left over": (checker.assert_nothing_left_over, "CREATE TABLE epochline_staging.left_over ()"),
    "an epoch unfinished": (
        checker.assert_nothing_left_over,
        "INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, dag_id, run_id, host, declaration_hash,"
        " lease_until) SELECT pipeline, 9, generation, 'PLANNED', dag_id, run_id, host, declaration_hash, lease_until"
        " FROM epochline.epoch",
    ),
    "a broken chain": (
        checker.assert_chain,
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
    server.superuser(line.dsn, statement.format(line.name))

    with pytest.raises(AssertionError):
        check(line)
