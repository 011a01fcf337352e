"""The time that a declaration gives the statements of a commit holds for whatever does the same work."""

from datetime import timedelta

import pytest

from epochline.operations.action import Request, Subject
from epochline.operations.savepoint import MakeSavepoint, Restore
from tests.integration.bench import NewBench

SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(1.2); RETURN NULL; END$$;
CREATE TRIGGER slow AFTER INSERT OR DELETE ON t FOR EACH STATEMENT EXECUTE FUNCTION slow();
"""


def test_a_trial_and_a_restore_may_take_as_long_as_a_commit(bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """S14: else the epoch could never be sealed, and the restore never be done."""
    monkeypatch.setattr("epochline.postgres.ledger.transactions.STATEMENT_TIMEOUT_SECONDS", 1)
    line = bench()
    line.pipeline = line.pipeline.model_copy(update={"commit_statement_timeout": timedelta(minutes=1)})
    line.sql(SLOW)
    subject = Subject(name="orders", ledger=line.ledger, declared=line.pipeline, source=line.kafka)
    make, restore, order = MakeSavepoint(), Restore(), Request(actor="ada", reason="to see")
    line.epoch({"k": "a", "v": 1})
    make.act(subject, make.parse({"name": "one"}), order)
    line.epoch({"k": "b", "v": 2})

    restore.act(subject, restore.parse({"name": "one"}), order)

    assert line.rows() == [("a", 1)]
