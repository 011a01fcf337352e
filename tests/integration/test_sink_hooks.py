"""Several sinks in one epoch: in which order their methods are called, when each shows it, and one that is down.

The pipeline has a table, a topic, files and a sink that records its calls (C3, C6, E6, P4, P7).
"""

import fcntl
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from epochline import CustomSink, Files, KafkaTopic, Text
from epochline.coordinator import abort, commit, seal
from epochline.errors import EpochStateError, SealRefusedError, SinkError, SinkUnavailableError, TargetError
from epochline.protocol.epoch import AbortOutcome
from tests.integration.sink_kinds import BRIEF, COLUMNS, PAGE, RUN, Folder, Table
from tests.integration.sinks_world import SinksPipeline, new_world, values
from tests.waiting import wait_until

RECORDING = "own:recording"
TABLE = Table("append")
SEALED = ["begin 1 1", "write 1 1", "seal 1 1"]
"""The calls up to the seal of the first epoch."""


@dataclass
class Four:
    """A pipeline to a table, a topic, files and the sink that writes down its calls."""

    world: SinksPipeline
    folder: Path

    @property
    def recording(self) -> Path:
        return self.folder / "recording"

    def calls(self) -> list[str]:
        """Method, epoch and attempt of each call so far."""
        log = self.recording / "log"
        return log.read_text().splitlines() if log.exists() else []

    def switch(self, *names: str, on: bool = True) -> None:
        for name in names:
            (self.recording / name).touch() if on else (self.recording / name).unlink()

    def seen(self) -> dict[str, list[str | None]]:
        recorded = [value for one in (self.recording / "shown").glob("*") for value in json.loads(one.read_text())]
        return {
            "table": TABLE.read(self.world), "topic": values(self.world.seen()),
            "files": Folder(str(self.folder / "files")).read(self.world), "recording": sorted(recorded),
        }  # fmt: skip

    def epoch(self, *lines: str) -> None:
        self.world.epoch(*lines)

    def recover(self) -> None:
        """What the next run does first, where there is nothing new to read."""
        self.world.it.asked_to_plan(lease=BRIEF)


@pytest.fixture
def four(postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path) -> Four:
    files, topic = Files(path=str(tmp_path / "files"), columns=COLUMNS), KafkaTopic(topic="out", value=Text())
    world = new_world(postgres_dsn, kafka_bootstrap, topic, files, _recording(tmp_path / "recording"))
    world.task = RUN
    return Four(world=world, folder=tmp_path)


@pytest.fixture
def two(postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path) -> SinksPipeline:
    """A pipeline with two sinks of the recording kind, and a committed epoch that is to be shown."""
    world = new_world(postgres_dsn, kafka_bootstrap, *(_recording(tmp_path / name) for name in ("first", "second")))
    world.epoch("a")
    return world


def _recording(folder: Path) -> CustomSink:
    folder.mkdir()
    options = {"folder": str(folder)}
    return CustomSink(sink="recording_sink:RecordingSink", options=options, label=folder.name, columns=COLUMNS)


def everywhere(*lines: str) -> dict[str, list[str]]:
    return {sink: sorted(lines) for sink in ("table", "topic", "files", "recording")}


def test_a_sink_that_would_refuse_is_asked_before_anything_is_planned(four: Four) -> None:
    """P4, Q5: its `SinkError` stops the plan; if it is down, the plan says so and goes on."""
    it = four.world.it
    four.world.produce("a")
    four.switch("broken.preflight")
    for asked in (it.planned, it.preview):
        with pytest.raises(SinkError, match="the recording sink refuses every epoch of sinks-"):
            asked()
    assert it.sql("SELECT count(*) FROM epochline.epochs") == [(0,)]

    four.switch("broken.preflight", on=False)
    assert it.preview().ranges
    assert not (four.recording / "prepared").exists(), "a preview wrote something"
    four.switch("down.preflight")
    assert [note for note in it.preview().notes if note.startswith(f"{RECORDING} is down")]
    planned, _ = it.planned()

    away = f"{RECORDING} is down, and shows this epoch when it is back"
    assert [note for note in planned.notes if note.startswith(away)]
    assert four.calls() == []


def test_two_sinks_in_one_folder_by_a_link_are_refused_before_anything_is_planned(
    postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    """Q5, P4: a reader of the manifest would miss the rows of one of them. A link may come after the declaration."""
    (tmp_path / "a folder").mkdir()
    paths = [tmp_path / "a folder" / "visits", tmp_path / "a link" / "visits"]
    it = (world := new_world(postgres_dsn, kafka_bootstrap, *(Files(path=str(p), columns=COLUMNS) for p in paths))).it
    (tmp_path / "a link").symlink_to(tmp_path / "a folder")
    world.produce("a")

    for asked in (it.planned, it.preview):
        with pytest.raises(TargetError, match="a link/visits is the folder of files:.*a folder/visits"):
            asked()
    assert it.sql("SELECT count(*) FROM epochline.epochs") == [(0,)]

    (tmp_path / "a link").unlink()
    world.epoch("b")
    it.publish()
    for path in paths:
        assert Folder(str(path)).read(world) == ["a", "b"]


def test_the_steps_of_an_epoch_come_in_their_order(four: Four) -> None:
    """C6, P4: begin, write, seal, commit; complete once every sink shows it."""
    four.epoch("a", "b")
    assert four.calls() == SEALED
    assert (four.recording / "prepared").exists()

    four.world.it.publish()
    four.epoch("c")
    four.world.it.publish()

    steps = ("begin", "write", "seal", "commit", "notify_complete")
    assert four.calls() == [f"{step} {epoch} 1" for epoch in (1, 2) for step in steps]
    assert four.seen() == everywhere("a", "b", "c")


def test_nothing_is_complete_when_a_seal_fails(four: Four) -> None:
    """C6, P4, C3: what was begun is discarded; neither commit nor complete is called, and no sink shows anything."""
    it = four.world.it
    four.switch("broken.seal")
    four.world.produce("a", "b")
    _, run, ticket = it.staged()
    with pytest.raises(SealRefusedError, match="refuses seal"):
        it.seal(ticket, run)
    abort(it.ledger, it.pipeline.name, 1, run, reason="its seal failed")

    assert it.publish() == []

    assert four.seen() == everywhere()
    assert it.sql("SELECT DISTINCT next_offset FROM epochline.heads") == [(0,)]
    assert four.calls() == [*SEALED, "recover_and_abort 1 1"]
    four.switch("broken.seal", on=False)
    it.epoch()
    it.publish()
    assert four.seen() == everywhere("a", "b")


CRASHES = {
    "write.part": ["begin 1 1", "write 1 1", "recover_and_abort 1 1"],
    "seal.committed": [*SEALED, "commit 1 1", "notify_complete 1 1"],
    "publish.receipts.shown@3": [*SEALED, "commit 1 1", "recover_and_commit 1 1", "notify_complete 1 1"],
    "publish.sink.notify_complete": [*SEALED, "commit 1 1"],
}


@pytest.mark.parametrize("failpoint", CRASHES)
def test_after_a_crash_the_next_run_calls_what_is_missing(four: Four, failpoint: str) -> None:
    """P4: before the seal it discards, after it it commits; whether a commit was done, it does not know."""
    four.world.produce("a", "b")
    four.world.killed_at(failpoint, "shown")

    four.recover()
    four.world.it.publish()

    assert [call for call in four.calls() if call.endswith(" 1 1")] == CRASHES[failpoint]


def test_an_epoch_has_one_record_of_each_sink_and_source_and_state_have_none(four: Four) -> None:
    """P7: sealed, committed and shown, each of the sinks for itself."""
    it = four.world.it
    topic, files = it.pipeline.topics[0], four.folder / "files"
    four.world.produce("a", "b")
    it.sealed()

    sealed = it.sql("SELECT sink FROM epochline.manifest WHERE sink <> '_quarantine' ORDER BY 1")
    assert sealed == sorted([(it.pipeline.outboxes[0].table,), (f"files:{files}",), ("lines",), (RECORDING,)])
    assert four.world.receipts() == []

    commit(it.ledger, it.source, it.pipeline.name, 1)

    due = {topic.name: "DUE", f"files:{files}": "DUE", "lines": "SHOWN", RECORDING: "DUE"}
    assert {sink: state for _, sink, state in four.world.receipts()} == due

    it.publish()

    assert {sink: state for _, sink, state in four.world.receipts()} == dict.fromkeys(due, "SHOWN")


def test_no_sink_shows_an_epoch_before_the_slowest_is_sealed(four: Four) -> None:
    """C3: the others were sealed long ago."""
    it = four.world.it
    four.switch("gate")
    four.world.produce("a", "b")
    _, run, ticket = it.staged()
    with (four.recording / "gate").open() as gate, ThreadPoolExecutor() as threads:
        fcntl.flock(gate, fcntl.LOCK_EX)
        sealing = threads.submit(seal, it.ledger, it.source, ticket, run)
        try:
            wait_until(lambda: "seal 1 1" in four.calls())
            with pytest.raises(EpochStateError, match="is not sealed; there is nothing to commit"):
                commit(it.ledger, it.source, it.pipeline.name, 1)
            assert it.publish() == []
            assert four.seen() == everywhere()
            assert not sealing.done()
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        sealing.result(timeout=30)
    assert four.seen() == everywhere()

    commit(it.ledger, it.source, it.pipeline.name, 1)
    it.publish()

    assert four.seen() == everywhere("a", "b")


def test_the_queries_of_the_page_say_what_is_to_be_shown_and_give_each_epoch_once(four: Four) -> None:
    """P7: receipts as docs/sinks.md asks for them."""
    it = four.world.it
    topic, files = it.pipeline.topics[0].name, f"files:{four.folder / 'files'}"
    asked = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    waiting, repeats = (query.replace("'visits'", f"'{it.pipeline.name}'") for query in asked)
    take = f"SELECT epochline.take_epoch('my report', '{it.pipeline.name}', '{files}')"
    four.epoch("a", "b")

    assert [row[:4] for row in it.sql(waiting)] == [(sink, "DUE", 1, 1) for sink in (files, topic, RECORDING)]
    assert it.sql(take) == [(None,)]

    it.publish()

    assert it.sql(waiting) == []
    ((*shown, seconds),) = it.sql("SELECT epoch_id, rows, seconds FROM epochline.receipts WHERE sink = %s", topic)
    assert (shown, seconds > 0) == ([1, 2], True)
    assert it.sql(repeats) == []  # no table of this pipeline is named `orders`
    assert [it.sql(take), it.sql(take)] == [[(1,)], [(None,)]]


def test_a_sink_that_is_down_for_many_runs_delays_itself_alone_and_loses_nothing(four: Four) -> None:
    """E6: the others show each epoch at once, a killed run is recovered all the same, and then all come in order."""
    four.switch("down.commit", "down.recover_and_commit")
    produced: list[str] = []
    for number in range(1, 5):
        produced += (lines := [f"{number}-{at}" for at in range(3)])
        four.world.produce(*lines)
        if number == 2:
            four.world.killed_at("seal.committed", "shown")
            four.recover()
        else:
            four.world.it.epoch()
        with pytest.raises(SinkUnavailableError, match="is down for"):
            four.world.it.publish()
        assert four.seen() == everywhere(*produced) | {"recording": []}
    assert [epoch for epoch, sink, state in four.world.receipts() if state != "SHOWN"] == [1, 2, 3, 4]
    before = len(four.calls())

    four.switch("down.commit", "down.recover_and_commit", on=False)
    four.world.it.publish()

    shown = [call for call in four.calls()[before:] if "commit" in call]
    assert shown == ["recover_and_commit 1 1", "commit 2 1", "commit 3 1", "commit 4 1"]
    assert four.seen() == everywhere(*produced)


def test_a_sink_that_refuses_for_good_is_reported_before_one_that_is_down(two: SinksPipeline, tmp_path: Path) -> None:
    """What no repeat mends is what a person has to see; the table shows the epoch all the same."""
    (tmp_path / "first" / "down.commit").touch()
    (tmp_path / "second" / "broken.commit").touch()

    with pytest.raises(SinkError, match="refuses commit") as raised:
        two.it.publish()

    assert not raised.value.retryable
    assert two.receipts() == [(1, "lines", "SHOWN"), (1, "own:first", "OPEN"), (1, "own:second", "OPEN")]
    assert TABLE.read(two) == ["a"]


@pytest.mark.parametrize("mistake", ["mistaken.commit", "mistaken"], ids=["in its commit", "where it is made"])
def test_a_sink_with_a_mistake_holds_back_nobody_but_itself(two: SinksPipeline, mistake: str, tmp_path: Path) -> None:
    """E6: whatever it raises; the sink behind it is served, and the error is reported."""
    (tmp_path / "first" / mistake).touch()

    with pytest.raises((ZeroDivisionError, SinkError), match=r"is mistaken in commit|cannot be opened from here"):
        two.it.publish()

    assert two.receipts() == [(1, "lines", "SHOWN"), (1, "own:first", "OPEN"), (1, "own:second", "SHOWN")]
    (tmp_path / "first" / mistake).unlink()
    two.it.publish()
    assert {state for _, _, state in two.receipts()} == {"SHOWN"}


def test_a_seal_whose_job_was_still_at_work_when_its_sinks_were_asked_is_refused(
    four: Four, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3, INV-9: the end mark came between the two looks, so that no sink has said how its rows are committed."""
    it = four.world.it
    four.world.produce("a")
    _, run, ticket = it.staged()
    with monkeypatch.context() as then:
        module = sys.modules[seal.__module__]
        then.setattr(module, "_observe", lambda *_: module._SourceAnswer())
        with pytest.raises(SealRefusedError, match="own:recording was not sealed"):
            it.seal(ticket, run)

    assert it.seal(ticket, run).read == 1


def test_what_a_sink_that_is_down_could_not_discard_is_discarded_by_a_later_run(four: Four) -> None:
    """INV-7: the abort is done, staging is kept as a reminder, and nobody waits for the sink."""
    it = four.world.it
    four.switch("down.recover_and_abort")
    four.world.produce("a", "b")
    planned, run = it.planned()
    it.stage(planned, it.attempt(planned, run))

    assert abort(it.ledger, it.pipeline.name, 1, run, reason="the test says so") is AbortOutcome.ABORTED

    assert TABLE.left(four.world) > 0
    it.epoch()
    it.publish()
    assert four.seen() == everywhere("a", "b")
    assert TABLE.left(four.world) > 0
    four.switch("down.recover_and_abort", on=False)

    four.recover()

    assert TABLE.left(four.world) == 0
    assert four.calls()[-1] == "recover_and_abort 1 1"
    assert four.seen() == everywhere("a", "b")
