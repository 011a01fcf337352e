"""How long to wait before the next attempt: an error of code that comes back is tried at growing pauses.

A host asks between two attempts. No use case of a task does, so it is not part of the module that they ask for their
pacing: every failpoint there must be one of a run's.
"""

from datetime import timedelta

from epochline.config.resolve import recorded_restart
from epochline.coordinator.intent import LEASE
from epochline.declare.settings import Endless, FixedDelay, NoRestart
from epochline.ports import Ledger
from epochline.protocol.epoch import EpochState
from epochline.protocol.failures import GIVEN_UP_AFTER, failed_alike


def pause_before_retry(ledger: Ledger, pipeline: str, epoch_id: int) -> tuple[timedelta | None, str]:
    """The pause before the next attempt of an epoch, which stays its run's until then, and what to say of it.

    None if the restart strategy of the epoch's plan allows no further attempt, whatever the host's number of retries.
    """
    with ledger.transaction() as tx:
        epoch = tx.epochs.lock(pipeline, epoch_id)
        strategy = recorded_restart(tx.history.settings(epoch))
        made = epoch.attempt - epoch.attempts_before
        if isinstance(strategy, FixedDelay | NoRestart) and made > strategy.retries:
            return None, f"{epoch}: no restart is left; its plan allowed {strategy.retries}"
        if isinstance(strategy, Endless):
            alike = failed_alike(tx.history.errors(epoch))
            pause = strategy.pause_after(alike)
        else:
            alike, pause = 0, strategy.delay
        if epoch.state is EpochState.PLANNED:
            tx.epochs.renew_lease(epoch, epoch.attempt, pause + LEASE)
    note = f"{epoch}: no offset moved; attempt {epoch.attempt + 1} begins in {pause.total_seconds():g} s"
    if isinstance(strategy, Endless) and alike >= GIVEN_UP_AFTER:
        note += (
            f". The last {alike} attempts failed of the same error of code. The declared Endless restarts go on, with"
            f" pauses of up to {strategy.longest_pause.total_seconds():g} s. Correct the code, or run `epochline"
            f" pause {pipeline} --reason …` and mark the run failed"
        )
    return pause, note
