"""The database is put back to a backup while Kafka and folders keep what they show; its newer state is lost.

Whatever the moment of the backup: nothing runs, an operator accepts the ledger, and runs go on. In the end tables and
sinks hold every record once.
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from epochline import KafkaTopic, Text
from epochline.coordinator import PlanOutcome, commit
from epochline.declare.external import Files
from epochline.errors import ActionRefusedError, LedgerBehindError, PipelinePausedError, SinkAheadError
from epochline.operations import Parameters, Request, Subject
from epochline.operations.accept import AcceptLedger
from tests.crash.cases import slow
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.crash.shown import files_left_over
from tests.crash.watching import all_decided
from tests.databases import copy_database
from tests.integration.sinks_world import SinksPipeline, new_world
from tests.reading import rows_in_folder

KINDS = [*map(slow, ("table", "topic", "files")), "topic and files"]


class Restored:
    def __init__(self, server: Server, kind: str, folder: Path) -> None:
        sinks: list[KafkaTopic | Files] = [KafkaTopic(topic="out", value=Text())] if "topic" in kind else []
        if "files" in kind:
            sinks.append(Files(path=str(folder / "files"), columns={"value": "text"}, format="json"))
        self._admin, dsn = server.postgres.superuser_dsn, server.new_database()
        self._name = dsn.rpartition("/")[2]
        self.world: SinksPipeline = new_world(dsn, server.kafka.bootstrap_servers, *sinks)
        self.it = self.world.it
        self.produced: list[str] = []

    def produce(self, *lines: str) -> None:
        self.world.produce(*lines)
        self.produced += lines

    def epoch(self, *lines: str) -> None:
        self.produce(*lines)
        self.it.epoch()
        self.it.publish()

    def epoch_with_backup(self, moment: str, *lines: str) -> None:
        self.produce(*lines)
        planned, run, ticket = self.it.staged()
        steps: dict[str, Callable[[], object]] = {
            "before the seal": lambda: None,
            "sealed": lambda: self.it.seal(ticket, run),
            "committed": lambda: self.it.commit(planned),
            "published": self.it.publish,
        }
        for name, step in steps.items():
            step()
            if name == moment:
                copy_database(self._admin, self._name, f"{self._name}_backup")

    def put_back(self) -> None:
        """What the backup does not hold is lost. The runs that come have other ids, as those of another day."""
        copy_database(self._admin, f"{self._name}_backup", self._name)
        self.it.run_prefix = "after"

    def accept(self) -> None:
        it = self.it
        subject = Subject(name=it.pipeline.name, ledger=it.ledger, declared=it.pipeline, source=it.source)
        AcceptLedger().act(subject, Parameters(), Request(actor="ada@here", reason="the newer ledger is lost"))

    def go_on(self) -> None:
        for _ in range(20):
            planned, run = self.it.asked_to_plan()
            if planned.epoch is None:
                assert planned.outcome is PlanOutcome.NOTHING_TO_READ
                break
            self.it.staged_and_sealed(planned, run)
            self.it.commit(planned)
            self.it.publish()
        self.it.publish()

    def table(self) -> Counter[str]:
        return Counter(value for (value,) in self.it.sql("SELECT value FROM lines"))

    def shown(self) -> dict[str, Counter[str]]:
        """What each sink that follows the commit shows."""
        found = {}
        for topic in self.it.pipeline.topics:
            all_decided(self.world.bootstrap, topic.topic)
            found[topic.name] = Counter(one.value or "" for one in self.world.seen())
        for files in self.it.pipeline.external:
            assert isinstance(files, Files)
            found[files.name] = Counter(row["value"] for row in rows_in_folder(files.path, files.format))
        return found

    def assert_exact(self) -> None:
        """I1: every line once, in the table and in every sink; nothing is left over."""
        expected = Counter(self.produced)
        assert self.table() == expected
        for sink, lines in self.shown().items():
            assert lines == expected, sink
        assert not self.it.sql("SELECT 1 FROM epochline.receipts WHERE state <> 'SHOWN'")
        assert not files_left_over(self.it.pipeline)
        assert self.it.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'epochline_staging'") == [(0,)]


@pytest.mark.fault("F38")
@pytest.mark.parametrize("moment", ["before the seal", "sealed", "committed", "published"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_database_from_a_backup_stops_the_pipeline_until_an_operator_accepts_it_and_then_all_is_there_once(
    server: Server, kind: str, moment: str, tmp_path: Path, recovery: Recovery
) -> None:
    """I1, I6, I7, INV-1, INV-8, P11: no id is burned, nothing is shown twice, and one command goes on."""
    one = Restored(server, kind, tmp_path)
    one.epoch("a1", "a2")
    one.epoch_with_backup(moment, "b1", "b2", "b3")
    one.epoch("c1", "c2")
    one.epoch("d1")
    one.put_back()
    recovery.last_fault()
    one.produce("e1", "e2")
    before = one.it.sql("SELECT last_epoch_id FROM epochline.pipeline")
    shown = one.shown()

    with pytest.raises(LedgerBehindError, match="which the ledger does not know.* went back in time"):
        one.it.asked_to_plan()
    with pytest.raises(PipelinePausedError, match="accept-ledger"):
        one.it.asked_to_plan()

    assert one.it.sql("SELECT last_epoch_id FROM epochline.pipeline") == before
    assert one.shown() == shown
    one.accept()
    one.go_on()
    recovery.took()
    one.assert_exact()
    one.epoch("f1")
    one.assert_exact()


@pytest.mark.fault("F38")
@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_that_lacks_no_more_than_the_commit_of_a_sealed_epoch_goes_on_by_itself(
    server: Server, kind: str, tmp_path: Path, recovery: Recovery
) -> None:
    """INV-6: the sinks show the sealed attempt's own rows, so the next run commits it."""
    one = Restored(server, kind, tmp_path)
    one.epoch("a1")
    one.epoch_with_backup("sealed", "b1", "b2")
    one.put_back()
    recovery.last_fault()
    one.produce("c1")

    one.go_on()

    recovery.took()
    one.assert_exact()


@pytest.mark.fault("F38")
def test_a_commit_that_began_before_the_database_was_put_back_is_refused(
    server: Server, tmp_path: Path, recovery: Recovery
) -> None:
    """INV-8: the task that commits asks, too, and not only the plan; the sealed epoch is not the newest one shown."""
    one = Restored(server, "topic and files", tmp_path)
    one.epoch("a1")
    one.epoch_with_backup("sealed", "b1")
    one.epoch("c1")
    one.put_back()
    recovery.last_fault()

    with pytest.raises(LedgerBehindError):
        commit(one.it.ledger, one.it.source, one.it.pipeline.name, 2)

    assert one.table() == Counter(["a1"])
    assert one.it.sql("SELECT paused_by FROM epochline.pipeline") == [("epochline",)]
    one.accept()
    one.go_on()
    recovery.took()
    one.assert_exact()


@pytest.mark.parametrize("records", [3, slow(1)], ids=["the lost epoch again", "in smaller epochs"])
def test_a_ledger_that_went_on_because_no_topic_could_show_its_loss_is_not_accepted_and_shows_nothing_twice(
    server: Server, tmp_path: Path, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6, P11: its Kafka was down while plan and commit asked, or a broker that was cut off answered.

    A folder refuses the rows of such an epoch while they are staged.
    """
    one = Restored(server, "topic", tmp_path)
    one.epoch_with_backup("published", "a1")
    one.epoch("b1", "b2", "b3")
    one.put_back()
    with monkeypatch.context() as hidden:
        hidden.setattr("epochline.coordinator.evidence.unknown_to", lambda *_: [])
        for _ in range(3 // records):
            one.it.epoch(record_limit=records)
    shown = one.shown()

    with pytest.raises(SinkAheadError, match="which the ledger does not know"):
        one.it.publish()
    with pytest.raises(ActionRefusedError, match="this ledger has gone on since it went back"):
        one.accept()

    assert one.shown() == shown


@pytest.mark.parametrize("without", ["evidence", "take-over"])
def test_without_the_guard_records_are_shown_twice(
    server: Server, tmp_path: Path, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: runs that nothing stops, and an acceptance that forgets what is shown."""
    one = Restored(server, "files", tmp_path)
    one.epoch("a1")
    one.epoch_with_backup("sealed", "b1")
    one.epoch("c1")
    one.put_back()
    one.produce("d1")
    if without == "evidence":
        monkeypatch.setattr("epochline.coordinator.evidence.unknown_to", lambda *_: [])
        one.it.sql("UPDATE epochline.pipeline SET last_epoch_id = 9")  # what refused runs burned until now
    else:
        with pytest.raises(LedgerBehindError):
            one.it.asked_to_plan()
        one.accept()
        # By the modules' names: their package has functions of the same ones.
        monkeypatch.setattr(sys.modules["epochline.coordinator.plan"], "shown_until", lambda *_: [])
        monkeypatch.setattr(sys.modules["epochline.coordinator.commit"], "shown_before", lambda *_: frozenset())

    one.go_on()

    (lines,) = one.shown().values()
    assert max(lines.values()) > 1


def test_a_ledger_that_knows_everything_is_not_accepted(server: Server, tmp_path: Path) -> None:
    """A refusal says why."""
    one = Restored(server, "topic", tmp_path)
    one.epoch("a1")

    with pytest.raises(ActionRefusedError, match="it did not go back"):
        one.accept()
