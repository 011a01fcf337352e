"""Where a run can stand when one of its tasks is killed, and what Airflow does next.

Together they pass every failpoint of plan, begin, write, manifest, seal, commit, publish, abort and recover. A test finds
out which scenario passes which, so a task is also killed at a new call of a use case.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from epochline.errors import (
    EpochAwaitsApprovalError,
    EpochStateError,
    LedgerBehindError,
    PipelinePausedError,
    StagingLostError,
)
from epochline.operations import Request
from epochline.operations.replay import plan_replay
from tests.crash.line import tried
from tests.crash.one_step import SharedTopic

Act = Callable[[SharedTopic], object]

ONE, TWO = "run-one", "run-two"
ORDER = Request(actor="somebody@here", reason="a test of crashes")

SOME = 30
"""Fewer than there are, so that another run has something to read as well."""


@dataclass(frozen=True)
class Scenario:
    """What was before a task, the task, and what Airflow does after it was killed: the same task again, and the rest.

    ``step`` is a task of `SharedTopic`, ``kind`` a name of `tests.crash.kinds.KINDS`; after ``after``, runs come until
    nothing is left to read.
    """

    before: Act
    step: str
    after: Act
    run: str = ONE
    limit: int = 1000
    kind: str = "plain"

    @property
    def of_case(self) -> dict[str, Any]:
        return {"limit": self.limit, "kind": self.kind}


planned = partial(SharedTopic.to_planned, who=ONE)
begun = partial(SharedTopic.to_begun, who=ONE)
staged = partial(SharedTopic.to_staged, who=ONE)
sealed = partial(SharedTopic.to_sealed, who=ONE)


def committed(line: SharedTopic) -> None:
    sealed(line)
    line.commit(1)


def with_former_leader(act: Act) -> Act:
    """The same, but at a time before every partition's leader changed."""

    def before(line: SharedTopic) -> None:
        line.source, now = line.former_source, line.source
        act(line)
        line.source = now

    return before


def aborted(line: SharedTopic) -> None:
    staged(line)
    line.abort(1, ONE)


def left_planned(line: SharedTopic) -> None:
    """Its run is gone, and a lease has passed since."""
    staged(line)
    line.query("UPDATE epochline.epoch SET lease_until = clock_timestamp() - interval '1 second'")


def shown_in_files(line: SharedTopic) -> None:
    committed(line)
    line.publish()


def behind(line: SharedTopic) -> None:
    """The folder shows an attempt that the ledger does not know, as after a backup was put back."""
    shown_in_files(line)
    line.lost_token = line.query("SELECT token FROM epochline.attempt WHERE pipeline = %s", line.name)[0][0]
    line.query("UPDATE epochline.attempt SET token = gen_random_uuid() WHERE pipeline = %s", line.name)


def group_expired(line: SharedTopic) -> None:
    """The last mirror is older than Kafka keeps a group; nothing is mirrored here."""
    committed(line)
    line.query(
        "INSERT INTO epochline.mirror (pipeline, number, generation, epoch_id, topics, confirmed_at, latest_then)"
        " VALUES (%s, 99, 1, 1, %s, now() - interval '30 days', 99)",
        line.name, [line.topic],
    )  # fmt: skip


def newer_ledger(line: SharedTopic) -> None:
    """However the plan died, the pipeline is paused by the next one; the newer ledger comes back, and it is resumed."""
    with pytest.raises((LedgerBehindError, PipelinePausedError)):
        line.plan(TWO)
    with pytest.raises(PipelinePausedError):
        line.plan(TWO)
    line.query("UPDATE epochline.attempt SET token = %s WHERE pipeline = %s", line.lost_token, line.name)
    with line.ledger.transaction() as tx:
        tx.operators.resume(line.name)
    run_two(line)


def tried_to_publish(line: SharedTopic) -> None:
    """The publisher died right after it had noted its intent."""
    committed(line)
    with line.ledger.transaction() as tx:
        for receipt in tx.receipts.due(line.name):
            assert tx.receipts.try_to_show(receipt)


def staging_lost(line: SharedTopic) -> None:
    """As if a server had lost unlogged rows (INV-6)."""
    sealed(line)
    line.query(f'DELETE FROM epochline_staging."{line.ticket_of(1).tables[0].table}"')


def abandoned(line: SharedTopic) -> None:
    """Aborted by a process that died before it dropped the staging."""
    staged(line)
    with line.ledger.transaction() as tx:
        epoch = tx.epochs.lock(line.name, 1)
        attempt = tx.attempts.live(epoch)
        assert attempt is not None
        tx.attempts.fence(attempt, "gone")
        tx.epochs.mark_aborted(epoch, "gone")


def requeued(line: SharedTopic) -> None:
    """An operator has the bad record read again."""
    committed(line)
    assert line.order("requeue", ORDER, TWO, everything=True).epoch is not None


def requeue_sealed(line: SharedTopic) -> None:
    requeued(line)
    line.step_pre_commit(TWO)


def extended_back(line: SharedTopic) -> None:
    """A pipeline that began at the end is to have what lies before, and has staged it."""
    assert line.plan(ONE).epoch is None
    assert line.order("extend-back", ORDER, TWO, to="earliest").epoch is not None
    line.step_pre_commit(TWO)


def replayed(line: SharedTopic) -> None:
    """An operator lets a replay take the place of the epoch that it read again."""
    committed(line)
    assert plan_replay(line.subject, 1, line.run_of(TWO)).epoch is not None
    line.step_pre_commit(TWO)


def idle(line: SharedTopic) -> None:
    """Everything was read hours ago."""
    committed(line)
    line.query("UPDATE epochline.planned_range SET newest_event_time = '2026-03-01 00:00Z'")
    line.query("UPDATE epochline.epoch SET planned_at = planned_at - interval '2 hours'")


def nothing_left(line: SharedTopic) -> None:
    """No window ends yet, for all the time that has passed."""
    assert line.run(TWO) == "skipped"


def approve(line: SharedTopic, epoch: int = 1) -> None:
    line.act("approve", ORDER, epoch=epoch)


def approved(line: SharedTopic) -> None:
    """A person approved what is outside its bounds, and nothing is visible yet."""
    sealed(line)
    approve(line)


def approved_and_committed(line: SharedTopic) -> None:
    """However the seal died: nothing is visible before a person approves what it sealed."""
    tasks(ONE, "pre_commit")(line)
    with pytest.raises(EpochAwaitsApprovalError):
        line.commit(1)
    with pytest.raises(EpochAwaitsApprovalError):
        line.plan(TWO)
    assert line.query(f"SELECT 1 FROM {line.name}") == []
    approve(line)
    commit_one(line)


def nothing(line: SharedTopic) -> None:
    """A first run."""


def ruled(line: SharedTopic) -> None:
    """The target has a rule that one record breaks, and that only a trial shows."""
    planned(line)
    line.query(f"CREATE INDEX ON {line.name} ((1 / (_offset - 5)))")


def staging_refuses(line: SharedTopic) -> None:
    """Staging does not take what the parse took."""
    begun(line)
    staging = line.ticket_of(1).tables[0].table
    line.query(f'ALTER TABLE epochline_staging."{staging}" ADD CHECK (_offset <> 5)')


def raised(line: SharedTopic) -> None:
    """Code of the user raised an error."""
    begun(line)
    line.query("UPDATE epochline.attempt SET error = 'KeyError: city', error_class = 'KeyError', failed_at = now()")


def target_drops_rows(line: SharedTopic) -> None:
    """Since the seal, a trigger of the target drops rows."""
    sealed(line)
    line.query("CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    line.query(f"CREATE TRIGGER dropping BEFORE INSERT ON {line.name} FOR EACH ROW EXECUTE FUNCTION drop_row()")


def commit_without_trigger(line: SharedTopic) -> None:
    line.query("DROP FUNCTION drop_row CASCADE")
    commit_one(line)


def run_one(line: SharedTopic) -> None:
    """The run goes on, its finished tasks included: as after a clear from plan_epoch."""
    assert line.run(ONE) == "success"


def run_two(line: SharedTopic) -> None:
    assert line.run(TWO) == "success"


def tasks(run: str, *steps: str) -> Act:
    """Tasks of a run, each tried again as Airflow does."""

    def after(line: SharedTopic) -> None:
        for step in steps:
            tried(partial(getattr(line, f"step_{step}"), run), 3)

    return after


# plan_epoch has succeeded and is not run again.
pre_commit_and_commit = tasks(ONE, "pre_commit", "commit")
pre_commit_and_commit_two = tasks(TWO, "pre_commit", "commit")
commit_one, commit_two = tasks(ONE, "commit"), tasks(TWO, "commit")
publish = tasks(ONE, "publish")
teardown = tasks(ONE, "abort")


def backfill_two(line: SharedTopic) -> None:
    """The retry of a task has the interval of its run."""
    tasks(TWO, "backfill")(line)
    run_two(line)


def teardown_and_clear(line: SharedTopic) -> None:
    teardown(line)
    run_one(line)


def teardown_pause_and_resume(line: SharedTopic) -> None:
    """However the teardown died, the pipeline is paused before anything is planned; an operator resumes it."""
    teardown(line)
    with pytest.raises(PipelinePausedError):
        line.plan(ONE)
    with line.ledger.transaction() as tx:
        tx.operators.resume(line.name)
    run_one(line)


def give_up_and_clear(line: SharedTopic) -> None:
    """The commit's retry says that the epoch is lost; the run fails, and is cleared."""
    with pytest.raises((StagingLostError, EpochStateError)):
        commit_one(line)
    teardown_and_clear(line)


SCENARIOS = {
    "plan": Scenario(nothing, "plan", run_one),
    "plan from a moment": Scenario(nothing, "plan", run_one, kind="from a moment"),
    "plan from a group": Scenario(nothing, "plan", run_one, kind="from a group"),
    "plan again": Scenario(planned, "plan", run_one),
    "plan after a commit": Scenario(committed, "plan", run_two, run=TWO, limit=SOME),
    "plan with state": Scenario(committed, "plan", run_two, run=TWO, limit=SOME, kind="with state"),
    "pre-commit with state": Scenario(planned, "pre_commit", pre_commit_and_commit, kind="with state"),
    "commit with state": Scenario(sealed, "commit", commit_one, kind="with state"),
    "pre-commit inside its bounds": Scenario(planned, "pre_commit", pre_commit_and_commit, kind="inside its bounds"),
    "pre-commit outside its bounds": Scenario(planned, "pre_commit", approved_and_committed, kind="outside its bounds"),
    "commit what was approved": Scenario(approved, "commit", commit_one, kind="outside its bounds"),
    "commit with an epoch file": Scenario(sealed, "commit", commit_one, kind="with epoch files"),
    "pre-commit with windows": Scenario(planned, "pre_commit", pre_commit_and_commit, kind="with windows"),
    "plan with windows": Scenario(committed, "plan", run_two, run=TWO, limit=SOME, kind="with windows"),
    "plan with windows of an idle source": Scenario(idle, "plan", nothing_left, run=TWO, kind="with windows"),
    "commit a replay": Scenario(replayed, "commit", commit_two, run=TWO),
    "plan after a change of leader": Scenario(with_former_leader(committed), "plan", run_two, run=TWO, limit=SOME),
    "pre-commit after a change of leader": Scenario(with_former_leader(planned), "pre_commit", pre_commit_and_commit),
    "plan after an abort": Scenario(aborted, "plan", run_one),
    "recover a sealed epoch": Scenario(sealed, "plan", run_two, run=TWO, limit=SOME),
    "recover a left epoch": Scenario(left_planned, "plan", run_two, run=TWO, limit=SOME),
    "sweep what was abandoned": Scenario(abandoned, "plan", run_two, run=TWO, limit=SOME),
    "plan a backfill": Scenario(committed, "backfill", backfill_two, run=TWO, limit=SOME),
    "preview": Scenario(planned, "preview", run_one),
    "pre-commit": Scenario(planned, "pre_commit", pre_commit_and_commit),
    "pre-commit again": Scenario(staged, "pre_commit", pre_commit_and_commit),
    "pre-commit what a target refuses": Scenario(ruled, "pre_commit", pre_commit_and_commit),
    "stage what staging refuses": Scenario(staging_refuses, "stage", pre_commit_and_commit),
    "renew the lease": Scenario(begun, "renew", pre_commit_and_commit),
    "write for a sealed attempt": Scenario(sealed, "write_late", commit_one),
    "write a part twice": Scenario(begun, "write_twice", pre_commit_and_commit),
    "fail in Spark": Scenario(begun, "keep_error", pre_commit_and_commit),
    "commit": Scenario(sealed, "commit", commit_one),
    "pre-commit a requeue": Scenario(requeued, "pre_commit", pre_commit_and_commit_two, run=TWO),
    "commit a requeue": Scenario(requeue_sealed, "commit", commit_two, run=TWO),
    "commit what lies before the origin": Scenario(extended_back, "commit", commit_two, run=TWO, kind="from the end"),
    "commit again": Scenario(committed, "commit", commit_one),
    "commit without staging": Scenario(staging_lost, "commit", give_up_and_clear),
    "plan after a pause": Scenario(committed, "plan", run_two, run=TWO, limit=SOME, kind="paced"),
    "plan after the group expired": Scenario(group_expired, "plan", run_two, run=TWO, limit=SOME),
    "pre-commit where failures count": Scenario(staged, "pre_commit", pre_commit_and_commit, kind="counting failures"),
    "abort one too many": Scenario(staged, "abort", teardown_pause_and_resume, kind="impatient"),
    "abort where code raised": Scenario(raised, "abort", teardown_pause_and_resume, kind="without restarts"),
    "abort where failures count": Scenario(raised, "abort", teardown_and_clear, kind="counting failures"),
    "commit to a target that drops rows": Scenario(target_drops_rows, "commit", commit_without_trigger),
    "abort": Scenario(staged, "abort", teardown_and_clear),
    "abort again": Scenario(aborted, "abort", teardown_and_clear),
    # A failpoint acts in the first scenario that passes it: those that need no broker come before those that do.
    "plan with files": Scenario(nothing, "plan", run_one, kind="with files"),
    "pre-commit with files": Scenario(planned, "pre_commit", pre_commit_and_commit, kind="with files"),
    "pre-commit with files again": Scenario(staged, "pre_commit", pre_commit_and_commit, kind="with files"),
    "commit with files": Scenario(sealed, "commit", commit_one, kind="with files"),
    "publish": Scenario(committed, "publish", publish, kind="with files"),
    "plan after files are shown": Scenario(shown_in_files, "plan", run_two, run=TWO, limit=SOME, kind="with files"),
    "plan with a ledger that went back": Scenario(behind, "plan", newer_ledger, run=TWO, limit=SOME, kind="with files"),
    "publish again": Scenario(tried_to_publish, "publish", publish, kind="with files"),
    "plan with sinks": Scenario(nothing, "plan", run_one, kind="with sinks"),
    "publish to a topic": Scenario(committed, "publish", publish, kind="with sinks"),
    "publish at least once": Scenario(committed, "publish", publish, kind="at least once"),
}
