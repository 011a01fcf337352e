"""Another table takes the place of a target, or a publication covers all tables, while a pipeline is at work."""

import time
from collections.abc import Callable

import pytest

from epochline.errors import TargetError
from tests.checker import recover
from tests.crash.line import Line
from tests.crash.servers import Server
from tests.databases import as_admin
from tests.integration.logins import superuser_of

REPLACED = {
    "renamed away": ("ALTER TABLE {0} RENAME TO kept", "ALTER TABLE kept RENAME TO {0}"),
    "made again": (
        "ALTER TABLE {0} RENAME TO kept; CREATE TABLE {0} (LIKE kept INCLUDING ALL)",
        "DROP TABLE {0}; ALTER TABLE kept RENAME TO {0}",
    ),
    "put back from a dump": (
        "ALTER TABLE {0} RENAME TO kept; CREATE TABLE {0} (LIKE kept INCLUDING ALL)",
        "INSERT INTO {0} TABLE kept",
    ),
}


@pytest.mark.fault("F43")
@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("sealed", [False, True], ids=["before the plan", "after the seal"])
def test_a_target_that_is_another_table_stops_plan_commit_and_migrate_until_its_rows_are_back(
    line: Line, how: str, sealed: bool
) -> None:
    """INV-9, I6: no epoch commits into a table that lacks what epochs wrote."""
    assert line.run() == "success"
    line.some()
    if sealed:
        line.to_sealed("run-2")
    away, back = (statement.format(line.name) for statement in REPLACED[how])
    line.query(away)

    with pytest.raises(TargetError, match=f"target {line.name} is "):
        line.commit(2) if sealed else line.plan("run-2")
    if how == "renamed away":
        with pytest.raises(TargetError, match=f"target {line.name} is gone"):
            line.create()

    since = time.monotonic()
    line.query(back)
    recover(line, since=since)


@pytest.mark.fault("F44")
@pytest.mark.parametrize("moment", ["before the plan", "before the seal", "before the commit"])
def test_a_publication_of_all_tables_stops_no_epoch_into_tables_that_migrate_made(
    line: Line, server: Server, moment: str
) -> None:
    """INV-6, I7."""
    at: dict[str, Callable[[], object]] = {
        "before the plan": lambda: None,
        "before the seal": line.to_staged,
        "before the commit": line.to_sealed,
    }
    at[moment]()

    as_admin(superuser_of(server.postgres.superuser_dsn, line.dsn), "CREATE PUBLICATION everything FOR ALL TABLES")
    since = time.monotonic()

    recover(line, since=since)
