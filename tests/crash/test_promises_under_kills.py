"""What is promised of an epoch whose processes, connections and servers are killed under it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochline.config.resolve import epoch_folder
from epochline.failpoints import KILLED
from epochline.postgres.ledger.savepoint_file import files_in, read_description
from epochline.protocol.epoch import EpochState
from tests.checker import assert_exact, recover
from tests.crash.cases import NewCase, keep_records
from tests.crash.line import Line
from tests.crash.scenarios import ONE, SOME, TWO, Act, planned, sealed, tasks
from tests.crash.servers import Server
from tests.crash.steps import Case
from tests.integration.kafka_topics import group_offsets

THOUSAND = 1000


@pytest.fixture
def new_server() -> Iterator[Server]:
    """Servers without the topics of other tests: a broker that was killed looks through each log when it comes back."""
    with Server.running() as one:
        yield one


@pytest.fixture
def thousand(new_server: Server, tmp_path: Path, fired: Path) -> Case:
    """A pipeline with a thousand records to read, for tasks in processes of their own."""
    first = Line(new_server.new_database(), new_server.kafka.bootstrap_servers)
    first.produce({p: [f"record {p}-{number}" for number in range(THOUSAND // 2)] for p in (0, 1)})
    keep_records(first, tmp_path / "records")
    line = Case(
        fired, dsn=new_server.new_database(), bootstrap=first.bootstrap, topic=first.topic,
        records=str(tmp_path / "records"), limit=THOUSAND, name="thousand",
    )  # fmt: skip
    line.produced = first.produced
    line.create()
    return line


def test_a_thousand_records_count_once_though_each_task_of_their_epoch_and_both_servers_are_killed(
    new_server: Server, thousand: Case
) -> None:
    """G8: the result is that of a run that nothing happened to."""
    for step, failpoint, again in (
        ("plan", "intent.commit", True),
        ("pre_commit", "write.copy", False),
        ("pre_commit", "seal.commit", True),
        ("commit", "commit.commit", True),
    ):
        assert thousand.take(step, ONE, failpoint=f"{failpoint}:exit").returncode == KILLED
        new_server.restart_broker()
        new_server.crash_and_restart()
        if again:
            tasks(ONE, step)(thousand)

    asked = "SELECT count(*), count(DISTINCT (_topic, _partition, _offset)), count(DISTINCT _epoch) FROM thousand"
    assert thousand.query(asked) == [(THOUSAND, THOUSAND, 1)]
    assert_exact(thousand)


@pytest.mark.parametrize(
    ("before", "step", "failpoint"),
    [
        (planned, "pre_commit", "write.copy"),
        (sealed, "commit", "commit.chain.advance"),
        (sealed, "commit", "commit.commit"),
    ],
)
def test_three_tolerated_failures_and_then_a_kill_lose_and_double_nothing(
    new_case: NewCase, before: Act, step: str, failpoint: str
) -> None:
    """N10: a tolerated failure leaves the next epoch nothing that a crash could count twice or skip."""
    line = new_case(kind="tolerant")
    for epoch_id, run in enumerate(("failed-1", "failed-2", "failed-3"), 1):
        line.to_staged(who=run)
        line.abort(epoch_id, run)
    before(line)

    assert line.take(step, ONE, failpoint=f"{failpoint}:exit").returncode == KILLED

    tasks(ONE, *dict.fromkeys((step, "commit")))(line)
    assert line.state(4) is EpochState.COMMITTED
    recover(line)


def test_an_epoch_whose_process_died_before_its_file_gets_the_file_from_the_next_plan(new_case: NewCase) -> None:
    """C11: killed -9 between the commit and the file; the next plan writes what that epoch left."""
    line = new_case(sealed, kind="with epoch files", limit=SOME)
    declared = line.pipeline.settings.epoch_files
    assert declared is not None
    folder = epoch_folder(declared, line.name)

    assert line.take("commit", ONE, failpoint="commit.committed:exit").returncode == KILLED
    assert (line.state(1), files_in(folder)) == (EpochState.COMMITTED, {})
    heads = line.heads()
    assert line.take("plan", TWO).said == "planned"

    assert list(files_in(folder)) == [1]
    with files_in(folder)[1].open("rb") as source:
        savepoint, _, states = read_description(source)
    assert {head.tp.partition: head.next_offset for head in savepoint.heads} == heads
    assert [(state["state"], state["keys"]) for state in states] == [(f"{line.name}_state", 1)]
    tasks(TWO, "pre_commit", "commit")(line)
    recover(line)


def test_a_commit_killed_before_its_mirror_is_mirrored_by_a_plan_that_has_nothing_to_read(new_case: NewCase) -> None:
    """INV-8: killed -9 between the commit and the write to the group, and its run is deleted. Kafka's tools showed lag."""
    line = new_case(sealed)
    group = line.pipeline.consumer_group
    assert line.take("commit", ONE, failpoint="commit.committed:exit").returncode == KILLED
    assert (line.state(1), group_offsets(line.bootstrap, group)) == (EpochState.COMMITTED, {})

    assert line.take("plan", TWO).said == "nothing_to_read"

    assert group_offsets(line.bootstrap, group) == line.heads()
    recover(line)
