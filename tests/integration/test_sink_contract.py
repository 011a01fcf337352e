"""One suite for every kind of sink: what its readers see, whatever fails, is killed, stopped or done twice (P4, P8).

The own sink is the one of docs/sinks.md, so that what the page shows is what is tested.
"""

import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epochline.coordinator import Plan, PlanOutcome, commit
from epochline.errors import SealRefusedError, SinkError
from epochline.protocol.epoch import AbortOutcome, CommitOutcome, Run
from epochline.protocol.sink import Sink
from tests.driver import epoch_of
from tests.integration import sink_kinds as kinds
from tests.integration.in_process import InProcess
from tests.integration.people import Patch
from tests.integration.sink_kinds import ALL, BRIEF, FOLLOWING, IN_PROCESSES, Folder, Kind
from tests.integration.sinks_world import SinksPipeline, new_world
from tests.processes.client import Forked

STORES: list[Any] = [pytest.param(store, marks=pytest.mark.long) for store in ("hdfs", "s3")]
"""Files on real servers, of tests/integration/stores.py."""

every_kind = pytest.mark.parametrize("line", [*ALL, *STORES], indirect=True)
every_kind_in_processes = pytest.mark.parametrize(
    "line",
    # The processes of an upsert target are those of an append one, those of an own sink are those of files.
    [
        *(pytest.param(kind, marks=pytest.mark.slow) if kind in ("upsert", "own") else kind for kind in IN_PROCESSES),
        *STORES,
    ],
    indirect=True,
)


@dataclass
class OneSink:
    """A pipeline with one sink, and what was produced for it."""

    world: SinksPipeline
    kind: Kind
    produced: list[str] = field(default_factory=list)

    @property
    def it(self) -> InProcess:
        return self.world.it

    def produce(self) -> list[str]:
        """An epoch's worth of lines, in both partitions; what a reader saw before."""
        before = sorted(self.produced)
        lines = [f"{len(self.produced) + at:05}" for at in range(7)]
        self.world.produce(*lines)
        self.produced += lines
        return before

    def read(self) -> list[str | None]:
        return self.kind.read(self.world)

    def sinks(self) -> list[Sink]:
        return [self.it.ledger.sink(self.it.pipeline, one.name) for one in self.it.pipeline.post_commit_sinks]

    def aborted(self, planned: Plan, run: Run) -> AbortOutcome:
        return self.it.abort(epoch_of(planned).epoch_id, run, by_operator=True)

    def next_run(self) -> None:
        """Whatever the ones before left: recover, read what there is, publish."""
        planned, run = self.it.asked_to_plan(lease=BRIEF)
        if planned.outcome is PlanOutcome.PLANNED:
            self.it.finish(planned, run)
        self.it.publish()

    def assert_nothing_new(self, before: list[str], step: str = "") -> None:
        """A reader sees what was shown before, and nothing else lies anywhere."""
        assert self.read() == before, step
        assert self.kind.left(self.world) == 0, step

    def assert_settled(self, step: str = "") -> None:
        """Each line is seen once, nothing else lies anywhere, and the ledger says so (P7)."""
        self.assert_nothing_new(sorted(self.produced), step)
        assert self.it.publish() == [], step
        committed = self.it.sql("SELECT epoch_id, 'SHOWN' FROM epochline.epochs WHERE state = 'COMMITTED' ORDER BY 1")
        assert [(epoch, state) for epoch, _, state in self.world.receipts()] == committed, step


@pytest.fixture
def line(
    request: pytest.FixtureRequest, postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path, monkeypatch: Patch
) -> OneSink:
    kinds.write_sink_of_the_page(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sqlite_sink", raising=False)
    if request.param in ("hdfs", "s3"):
        kind: Kind = Folder(request.getfixturevalue(request.param).new_url())
    else:
        kind = kinds.kind_of(request.param, tmp_path)
    world = new_world(postgres_dsn, kafka_bootstrap, kind.declare(), table=False)
    world.task, world.path = kinds.RUN, (tmp_path,)
    return OneSink(world, kind)


@every_kind
def test_an_epoch_is_seen_whole_once_it_is_shown_and_not_before(line: OneSink) -> None:
    """P4, P9: begun, written and sealed it is seen by nobody."""
    for _ in range(2):
        before = line.produce()
        planned, run = line.it.planned()
        ticket = line.it.attempt(planned, run)
        assert line.read() == before
        line.it.stage(planned, ticket)
        assert line.read() == before
        line.it.seal(ticket, run)
        assert line.read() == before

        line.it.commit(planned)

        assert line.read() == (before if line.kind.follows else sorted(line.produced))

        line.it.publish()

        line.assert_settled()


@every_kind
def test_a_seal_that_misses_rows_is_refused_and_nothing_is_seen(line: OneSink) -> None:
    """INV-9: what could not be committed is never pre-committed."""
    line.produce()
    line.next_run()
    before = line.produce()
    planned, run, ticket = line.it.staged()
    line.kind.spoil(line.world, ticket)

    with pytest.raises(SealRefusedError):
        line.it.seal(ticket, run)

    assert line.it.publish() == []
    assert line.read() == before
    line.aborted(planned, run)
    line.next_run()
    line.assert_settled()


@pytest.mark.parametrize("line", ["files"], indirect=True)
@pytest.mark.parametrize("lost", [False, True], ids=["committed where they are", "their machine is lost"])
def test_a_machine_that_lacks_sealed_files_commits_nothing(line: OneSink, lost: bool, tmp_path: Path) -> None:
    """INV-6: each machine has a disk of its own under one path. No offset moves past rows that nobody could show."""
    line.produce()
    planned, run, _ = line.it.sealed()
    assert isinstance(line.kind, Folder)
    here, there = Path(line.kind.path), tmp_path / "of the machine that staged"
    here.rename(there)

    for commits in (lambda: line.it.commit(planned), line.next_run):
        with pytest.raises(SinkError, match=r"lacks sealed files\. .* run `epochline abort \S+ \d --reason …`$"):
            commits()

    assert line.it.sql("SELECT state FROM epochline.epochs") == [("PRE_COMMITTED",)]
    if lost:
        line.aborted(planned, run)
    else:
        shutil.rmtree(here, ignore_errors=True)
        there.rename(here)
    line.next_run()
    line.assert_settled()


@every_kind
def test_what_is_sealed_is_shown_although_its_run_failed_and_a_late_abort_takes_nothing_back(line: OneSink) -> None:
    """INV-6, INV-7, P15: the next run finishes it before it reads anything."""
    before = line.produce()
    planned, run, ticket = line.it.sealed()
    assert line.read() == before

    line.next_run()

    line.assert_settled()
    assert line.aborted(planned, run) is AbortOutcome.ALREADY_COMMITTED
    for sink in line.sinks():
        sink.abort(ticket.sink_attempt)
        sink.recover_and_abort(ticket.sink_attempt)
    line.assert_settled()


@every_kind
def test_shown_twice_is_shown_once(line: OneSink) -> None:
    """P5, INV-5: by the use case, and by each method of the sink; also when a later epoch is there."""
    it, name = line.it, line.it.pipeline.name
    line.produce()
    epoch_id = it.epoch().epoch.epoch_id
    with it.ledger.transaction() as tx:
        due = tx.receipts.due(name)
    assert len(due) == int(line.kind.follows)
    it.publish()

    for _ in range(2):
        assert commit(it.ledger, it.source, name, epoch_id).outcome is CommitOutcome.ALREADY_COMMITTED
        for receipt in due:
            sink = it.ledger.sink(it.pipeline, receipt.sink)
            sink.commit(receipt.committable)
            sink.recover_and_commit(receipt.committable)
            sink.notify_complete(receipt.committable)
        line.assert_settled()
        line.produce()
        line.next_run()


@every_kind
@pytest.mark.parametrize("step", ["begun", "written", "sealed"])
def test_aborted_twice_is_aborted_once(line: OneSink, step: str) -> None:
    """P4, P8, P15, INV-7: by the use case, and by each method of the sink; its records come with the next epoch."""
    line.produce()
    line.next_run()
    before = line.produce()
    if step == "begun":
        planned, run = line.it.planned()
        ticket = line.it.attempt(planned, run)
    else:
        planned, run, ticket = line.it.staged() if step == "written" else line.it.sealed()

    assert line.aborted(planned, run) is AbortOutcome.ABORTED
    line.assert_nothing_new(before)
    assert line.aborted(planned, run) is AbortOutcome.ALREADY_ABORTED
    for sink in line.sinks():
        for discard in (sink.abort, sink.abort, sink.recover_and_abort, sink.recover_and_abort):
            discard(ticket.sink_attempt)

    line.assert_nothing_new(before)
    line.next_run()
    line.assert_settled()


@every_kind
def test_an_attempt_that_took_anothers_place_is_seen_alone(line: OneSink) -> None:
    """INV-4: two attempts of one epoch were written whole, one was sealed."""
    line.produce()
    planned, run, _ = line.it.staged()
    line.it.staged_and_sealed(planned, run)

    line.next_run()

    line.assert_settled()


# Killed, exit code 137, in a process of its own.

STEPS = (
    "begin.attempts.begin", "begin.committed", "write.connect", "write.part", "write.commit", "write.committed",
    "manifest.committed", "seal.commit", "seal.committed", "commit.commit", "commit.committed",
)  # fmt: skip
STEPS_THAT_FOLLOW = (
    "begin.sink.begin", "seal.sink.seal", "publish.sink.commit", "publish.receipts.shown", "publish.commit.3",
    "publish.committed.3", "publish.sink.notify_complete",
)  # fmt: skip


@every_kind_in_processes
def test_an_epoch_of_a_run_killed_at_any_step_is_seen_once_after_the_next_run(line: OneSink) -> None:
    """P4, P11, Q5: begin, write, seal, commit and publish; in between a reader sees all of it or nothing."""
    for step in STEPS + (STEPS_THAT_FOLLOW if line.kind.follows else ()):
        before = line.produce()

        line.world.killed_at(step, "shown")

        assert line.read() in (before, sorted(line.produced)), step
        line.next_run()
        line.assert_settled(step)


@pytest.mark.parametrize(
    "line",
    ["topic", *(pytest.param(kind, marks=pytest.mark.slow) for kind in IN_PROCESSES if kind in FOLLOWING[1:]), *STORES],
    indirect=True,
)
def test_a_publisher_killed_again_while_it_recovers_is_made_good_by_the_next(line: OneSink) -> None:
    """INV-5: recover_and_commit, again and again."""
    for step in ("publish.sink.commit", "publish.receipts.shown"):
        before = line.produce()
        line.world.killed_at(step, "shown")
        for again in ("publish.sink.recover_and_commit", "publish.receipts.shown", "publish.commit.3"):
            line.world.killed_at(again)
            assert line.read() in (before, sorted(line.produced)), again

        line.next_run()

        line.assert_settled(step)


@every_kind_in_processes
def test_an_abort_killed_at_any_step_leaves_nothing_once_the_next_run_is_through(line: OneSink) -> None:
    """I6, INV-7: what was sealed and not yet aborted is committed; what was aborted is read again."""
    steps = ["abort.commit", "abort.committed", "discard.attempts.drop_staging", "discard.commit.2"]
    for step in steps + (["discard.sink.recover_and_abort"] if line.it.pipeline.external else []):
        before = line.produce()

        line.world.killed_at(step, "sealed_and_aborted")

        assert line.read() == before, step
        line.next_run()
        line.assert_settled(step)


# Stopped by SIGSTOP, and woken when others are done.


@every_kind_in_processes
def test_a_zombie_woken_before_its_commit_changes_nothing(line: OneSink) -> None:
    """P13, F22: others have shown its epoch and a later one."""
    line.produce()
    zombie = _stopped_at(line, "publish.sink.commit" if line.kind.follows else "commit.transaction")
    line.next_run()
    line.produce()
    line.next_run()
    line.assert_settled()

    said = _woken(zombie)

    assert zombie.returncode == 0, said
    line.assert_settled()


@every_kind_in_processes
@pytest.mark.parametrize("place", ["write.connect", "write.part"], ids=["before its rows", "before its part counts"])
def test_a_zombie_woken_before_its_write_adds_nothing(line: OneSink, place: str) -> None:
    """P13, INV-4: its attempt was fenced, and the same range was read by another run."""
    line.produce()
    zombie = _stopped_at(line, place)
    line.next_run()
    line.assert_settled()

    said = _woken(zombie)

    assert zombie.returncode == 1, said
    assert "was fenced" in said or "was sealed or aborted" in said or "It was removed" in said
    if isinstance(line.kind, Folder) and line.kind.takes_late_files:
        assert line.read() == sorted(line.produced)
        line.kind.clean_up()
    line.assert_settled()
    line.produce()
    line.next_run()
    line.assert_settled()


def _stopped_at(line: OneSink, failpoint: str) -> Forked:
    return line.world.in_a_process("shown", EPOCHLINE_FAILPOINT=f"{failpoint}:stop").until_stopped()


def _woken(zombie: Forked) -> str:
    zombie.send_signal(signal.SIGCONT)
    out, err = zombie.communicate(timeout=60)
    return out + err
