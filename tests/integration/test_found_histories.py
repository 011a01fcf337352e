"""Histories that `tests.integration.operators_machine` found, or that are the like of them, step by step."""

from collections.abc import Iterator

import pytest

from epochline.errors import LedgerBehindError
from tests.integration.machine_world import Servers
from tests.integration.operators_machine import OperatorsMachine, machine


@pytest.fixture
def history(machine_servers: Servers) -> Iterator[OperatorsMachine]:
    one = machine(machine_servers)()
    yield one
    one.teardown()


def holds(one: OperatorsMachine) -> None:
    one.the_target_holds_what_the_standing_epochs_read()
    one.nothing_is_there_twice()


def test_what_a_folder_shows_is_not_shown_again_by_extending_back_a_ledger_that_forgot_its_origins(
    history: OperatorsMachine,
) -> None:
    """INV-5: the backup is older than the first plan, and the startup mode begins at the end of what is shown."""
    history.a_pipeline(files=True, existing=False, startup="latest")
    history.a_backup_is_made()
    history.extend_back(step=None)
    history.the_topic_is_made_again(records=2)
    history.a_run_dies_after_its_seal()
    history.a_savepoint()
    history.a_log_is_truncated(lost=1, partition=0, records=0)
    history.the_backup_is_put_back()
    history.a_savepoint()

    history.extend_back(step=None)

    holds(history)
    assert history.met["behind"]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_what_a_lost_ledger_extended_back_is_read_again_into_the_tables_alone_and_the_rest_is_shown(
    history: OperatorsMachine, steps: int
) -> None:
    """INV-5: an epoch ends where the lost ledger's origin was, so that it is shown as a whole or not at all."""
    history.a_pipeline(files=True, existing=False, startup="latest")
    history.a_run_goes_through()
    history.produce(partition=0, records=2)
    history.a_run_goes_through()
    history.a_backup_is_made()
    for _ in range(steps):
        history.extend_back(step=1)
    history.the_backup_is_put_back()

    for _ in range(6):
        history.extend_back(step=None)
        holds(history)

    assert history._shown() == history._rows()
    assert sum(history._rows().values()) == 6


@pytest.mark.parametrize("truncated_after_accepting", [False, True])
def test_what_a_folder_shows_of_records_that_were_truncated_since_is_not_taken_for_what_came_in_their_place(
    history: OperatorsMachine, truncated_after_accepting: bool
) -> None:
    """INV-5, INV-8: offsets alone do not say that the log under them is another one now (I11)."""
    history.a_pipeline(files=True, existing=False, startup="earliest")
    history.a_run_goes_through()
    history.a_backup_is_made()
    history.produce(partition=1, records=2)
    history.a_run_goes_through()
    history.the_backup_is_put_back()
    if truncated_after_accepting:
        with pytest.raises(LedgerBehindError):
            history._run()
        history._act("accept-ledger")

    history.a_log_is_truncated(lost=1, partition=1, records=4)
    history.a_run_goes_through()
    history._finish()

    assert history.met["adopt-topic"]


def test_an_audit_finds_nothing_in_what_a_requeue_explains(history: OperatorsMachine) -> None:
    """INV-9, I1: before the parse is mended and after, before the requeue, after it, and after it was undone."""
    history.a_pipeline(files=False, existing=True, startup="earliest")
    history.produce_bad(partition=0)
    history.produce_bad(partition=1)
    history.a_savepoint()
    history.requeue()
    assert history.audited() == []
    history.the_parse_is_mended()
    assert history.audited() == []

    history.requeue()
    holds(history)
    assert history.audited() == []
    history.produce_bad(partition=0)
    history.a_run_goes_through()
    assert history.audited() == []

    history.restore_to(history.savepoints[-1])
    assert history.audited() == []
    history.requeue()
    holds(history)
    assert history.audited() == []
    assert history.met["requeued"] >= 2, history.met


def test_an_audit_still_finds_what_was_lost_beside_a_requeue(history: OperatorsMachine) -> None:
    """INV-9: a requeued row that is gone, and a good record that somebody hid in the quarantine."""
    history.a_pipeline(files=False, existing=False, startup="earliest")
    history.produce_bad(partition=0)
    history.a_run_goes_through()
    history.the_parse_is_mended()
    history.requeue()
    undo = "CREATE TABLE gone AS SELECT * FROM t WHERE {0}; DELETE FROM t WHERE {0}"

    history._sql(undo.format("value LIKE 'bad%'") + " RETURNING 1")

    (found,) = history.audited()
    assert found.startswith("t: missing: orders-1-0 offset 2")
    history._sql("INSERT INTO t SELECT * FROM gone RETURNING 1")
    history._sql(
        "INSERT INTO epochline.quarantined_record SELECT pipeline, generation, epoch_id, topic, topic_id, 1, 0, NULL, NULL,"
        " convert_to((SELECT value FROM t WHERE _partition = 1 AND _offset = 0), 'UTF8'), NULL, 'hidden'"
        " FROM epochline.quarantined_record;"
        "DELETE FROM t WHERE _partition = 1 AND _offset = 0 RETURNING 1"
    )
    (found,) = history.audited()
    assert "passed 2 in the ledger, 1 now; quarantined 0 in the ledger, 1 now" in found
    history.contents.clear()  # nothing is right any more


def test_an_audit_does_not_judge_what_a_truncation_replaced(history: OperatorsMachine) -> None:
    """The log has grown again beyond the cut: other records lie at the old offsets."""
    history.a_pipeline(files=False, existing=False, startup="earliest")
    history.produce(partition=0, records=3)
    history.a_run_goes_through()
    history.a_log_is_truncated(partition=0, lost=2, records=6)
    history.a_run_goes_through()
    assert history.met["adopt-topic"]
    holds(history)

    assert history.audited() == []

    history._sql("UPDATE t SET value = value || '!' WHERE _partition = 0 AND _offset = 0 RETURNING 1")
    assert len(history.audited()) == 1, "what lies before the cut is judged"
    history.contents.clear()
