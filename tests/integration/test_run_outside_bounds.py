"""`epochline run` with an epoch outside its bounds: it waits sealed, whatever the settings say of cancelled epochs."""

from pathlib import Path

from tests.commands import Call, in_processes
from tests.databases import query
from tests.integration.people import declare


def test_a_run_leaves_an_epoch_that_awaits_approval_and_the_next_one_commits_it_once_approved(
    fed: str, call: Call, postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    """INV-6: nobody cancelled the epoch, so `on_cancel` deletes nothing."""
    settings = 'bounds=Bounds(most_rows=1), settings=Settings(on_cancel="delete"),'
    declare(tmp_path, fed, more=settings)
    file = tmp_path / "people.py"
    file.write_text(file.read_text().replace("import Json", "import Bounds, Settings, Json"))
    epochline = in_processes(tmp_path, postgres=postgres_dsn, kafka=kafka_bootstrap)  # one Spark is one process
    run = ("run", "people", "--once", "--master", "local[1]")

    refusal = epochline(*run, code=1)

    assert "awaits approval: 100 rows staged, at most 1 expected" in refusal
    assert "epochline approve people 1 --reason" in refusal
    assert "commits it" not in refusal
    assert query(postgres_dsn, "SELECT state, approval FROM epochline.epochs") == [("PRE_COMMITTED", "awaited")]
    assert "awaits approval" in epochline(*run, code=1)

    call.shown("approve", "people", 1, "--reason", "a backlog", "--yes")
    said = epochline(*run, code=1)
    assert "committed epoch 1 of people" in said
    assert "epoch 2 of people: is pre-committed" in said
    assert query(postgres_dsn, "SELECT count(*) FROM people WHERE _epoch = 1") == [(100,)]
    assert query(postgres_dsn, "SELECT decided_reason FROM epochline.epochs WHERE epoch_id = 1") == [("a backlog",)]
