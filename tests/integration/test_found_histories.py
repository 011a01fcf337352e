"""Histories that `tests.integration.operators_machine` found, or that are the like of them, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from epochline.errors import LedgerBehindError
from epochline.local.stack import Stack
from tests.integration.operators_machine import OperatorsMachine


@pytest.fixture
def history(stack: Stack, new_database: Callable[[], str]) -> Iterator[OperatorsMachine]:
    made = {"database": staticmethod(new_database), "superuser": stack.postgres.superuser_dsn}
    one = type("MachineOfOneHistory", (OperatorsMachine,), made)()
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
    """INV-5, INV-8: offsets alone do not say that the log under them is another one now."""
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
