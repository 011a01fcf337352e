"""The example programs, run as a user runs them, and those between topics without Spark's JVM: each result is theirs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

import two_step_run
from epochline import Json, KafkaTopic
from epochline.cli import app
from epochline.cli.program_run import ProgramRun
from epochline.config.discovery import find
from epochline.coordinator import PlanOutcome
from epochline.local.stack import Stack
from epochline_examples.programs import PROGRAMS
from pipelines.order_query import ORDER_TOTALS
from tests.databases import query
from tests.integration.kafka_topics import markers_written, read_topic
from tests.integration.sinks_world import SinksPipeline, in_process, new_topics, new_world, producer_to, values

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "dags" / "examples"
SHORTEST = "batch_sql"


@pytest.fixture
def home(stack: Stack, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the stack that the programs run on: the session's own."""
    stack.up(("postgres", "kafka"), report=lambda _: None)
    monkeypatch.setenv("EPOCHLINE_HOME", str(stack.home.root))
    return str(stack.home.root)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == SHORTEST else pytest.mark.slow) for name in PROGRAMS]
)
def test_a_program_gives_what_the_documents_say_although_it_is_killed_on_the_way(name: str, home: str) -> None:
    """E10: input, commands, the fault of its document, result and verdict; the slow cases show E1 to E12 and C11."""
    done = subprocess.run(
        [sys.executable, "-c", "from epochline.cli import main; main()", "examples", "run", name],
        env={**os.environ, "EPOCHLINE_HOME": home}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "RIGHT" in done.stdout
    assert "WRONG" not in done.stdout
    assert "# killed at" in done.stdout
    files = PROGRAMS[name].files
    described = [json.loads(ZipFile(Path(home, "examples", name, file)).read("savepoint.json")) for file in files]
    assert [one["epoch_id"] for one in described] == list(range(1, len(files) + 1)), "C11"
    ranges = [(read["start"], read["until"]) for one in described for read in one["ranges"]]
    assert all(before[1] == after[0] for before, after in pairwise(ranges)), "C11: each says how far it read"
    assert [read[1] for read in ranges] == [head["next_offset"] for one in described for head in one["heads"]]


@pytest.mark.parametrize("name", ["order_totals", "order_windows"])
def test_no_column_of_the_sql_examples_needs_quotes(name: str, postgres_dsn: str) -> None:
    """X30: PostgreSQL itself is asked; it would quote ``timestamp``, ``user`` and ``userName``."""
    declared = find(name, DAGS)
    names = {*declared.parsed_columns, *(column for table in declared.tables for column in table.columns or {})}

    quoted = query(postgres_dsn, "SELECT n FROM unnest(%s) n WHERE quote_ident(n) <> n", [*names, "timestamp"])

    assert quoted == [("timestamp",)]
    assert "user_name" in names
    assert "`" not in ORDER_TOTALS


def test_a_program_whose_result_is_another_says_so(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    ProgramRun(PROGRAMS[SHORTEST])._prepare()

    assert not ProgramRun(PROGRAMS[SHORTEST].model_copy(update={"files": ("nowhere.zip",)}))._verdict()

    said = capsys.readouterr().out
    assert "WRONG" in said
    assert "nowhere.zip" in said


def test_a_program_that_does_not_exist_is_wrong_use_and_the_list_names_them_all() -> None:
    runner = CliRunner(env={"COLUMNS": "200"})

    answer = runner.invoke(app, ["examples", "run", "nothing"])
    listed = runner.invoke(app, ["examples", "list"]).output

    assert answer.exit_code == 2
    assert "word_count" in answer.output
    assert [name for name in PROGRAMS if name not in listed] == []


RESTARTS = 3


def sent_without_state() -> Iterator[int]:
    """The numbers that the restart demo sends until its restarts are used up, if a variable keeps its position."""
    for _ in range(1 + RESTARTS):
        offset = 0
        while True:
            offset += 1
            yield offset
            if offset % 5 == 0:
                break  # the exception


def test_a_position_that_is_kept_in_a_variable_is_lost_at_every_restart() -> None:
    """E8, X15: the same code without the ledger: one to five, four times."""
    assert list(sent_without_state()) == [1, 2, 3, 4, 5] * (1 + RESTARTS)


Made = Callable[..., SinksPipeline]
KeyAndValue = tuple[bytes | None, bytes | None]


@pytest.fixture
def shipped(postgres_dsn: str, kafka_bootstrap: str) -> Made:
    def make(name: str, *, reads: str | None = None) -> SinksPipeline:
        source, out = new_topics(kafka_bootstrap)
        declared = find(name, DAGS)
        sinks = tuple(
            one.model_copy(update={"topic": out}) if isinstance(one, KafkaTopic) else one for one in declared.sinks
        )
        read = declared.source.model_copy(update={"topics": (reads or source,)})
        fields = {"name": f"{name}-{source}", "source": read, "sinks": sinks}
        it = in_process(postgres_dsn, kafka_bootstrap, declared.model_copy(update=fields)).create()
        return SinksPipeline(it=it, bootstrap=kafka_bootstrap, source=it.pipeline.source.topics[0], topics=(out,))

    return make


class TestPassThrough:
    """E12, X25, K16."""

    @pytest.mark.parametrize(
        ("program", "killed_at", "times"),
        [
            ("pass_through", "topic.committed", 1),
            ("pass_through", "topic.commit", 1),
            ("pass_through_at_least_once", "topic.sent", 2),
        ],
    )
    def test_only_at_least_once_repeats_after_a_crash_behind_the_send(
        self, shipped: Made, program: str, killed_at: str, times: int
    ) -> None:
        world = shipped(program)
        world.epoch("a", "b", "c")
        world.killed_at(killed_at)

        world.it.publish()

        assert values(world.seen()) == sorted(["a", "b", "c"] * times)

    @pytest.mark.parametrize("program", ["pass_through", "pass_through_at_least_once"])
    def test_a_b_c_come_out_as_a_b_c(self, shipped: Made, program: str) -> None:
        world = shipped(program)
        world.epoch("a", "b", "c", keys=["one"] * 3)

        world.it.publish()

        assert [(one.key, one.value) for one in world.seen()] == [("one", "a"), ("one", "b"), ("one", "c")]

    def test_bytes_are_passed_as_they_are_and_what_is_missing_stays_missing(self, shipped: Made) -> None:
        """Neither key nor value need be text; a tombstone stays one, an empty value and an empty key stay empty."""
        world = shipped("pass_through")
        sent: list[KeyAndValue] = [(b"\xff\x00k", b"\x80\x00"), (b"gone", None), (None, b"v"), (b"", b""), (None, None)]
        producer = producer_to(world.bootstrap)
        for key, value in sent:
            producer.produce(world.source, key=key, value=value, partition=0)
        assert producer.flush(30) == 0
        world.it.epoch()

        world.it.publish()

        found = [(one.key, one.value) for one in read_topic(world.bootstrap, world.topics[0])]
        assert (len(found), set(found)) == (5, set(sent))


class TestSinkComparison:
    """E6, X8, X9, X23, X24, C3."""

    @staticmethod
    def tuples(epoch: int) -> list[str]:
        return [
            json.dumps({"key1": f"a{n}", "key2": f"b{n % 3}", "key3": f"c{n % 2}", "indicate": 10 * epoch + n})
            for n in range(10)
        ]

    def expected(self, *epochs: int) -> dict[str, int]:
        expected = sum(json.loads(line)["indicate"] for epoch in epochs for line in self.tuples(epoch))
        return {"step": expected, "compare": expected, "kafka": expected}

    @staticmethod
    def sums(world: SinksPipeline) -> dict[str, int]:
        sums_of = (f"(SELECT sum(indicate) FROM examples.test_two_step{one})" for one in ("", "_compare"))
        ((rows, sums),) = world.it.sql(f"SELECT {', '.join(sums_of)}")
        topic = sum(json.loads(one.value or "")["indicate"] for one in world.seen())
        return {"step": int(rows), "compare": int(sums), "kafka": topic}

    def test_three_sinks_agree_although_one_throws_and_the_publisher_is_killed(self, shipped: Made) -> None:
        """An exception on the twelfth row of a run: epochs 2 and 3 fail once, and pass on retry."""
        world = shipped("sink_comparison")
        throwing = [
            one.model_copy(update={"select": "two_step_fault:compared"}) if str(one).endswith("_compare") else one
            for one in world.it.pipeline.sinks
        ]
        world.it.pipeline = world.it.pipeline.model_copy(update={"sinks": tuple(throwing)})
        two_step_run.restart()
        for epoch in (1, 2, 3):
            world.produce(*self.tuples(epoch))
            planned, run = world.it.planned()
            if epoch > 1:
                ticket = world.it.attempt(planned, run)
                with pytest.raises(RuntimeError, match=r"^compare test exception\.$"):
                    world.it.stage(planned, ticket)
                assert two_step_run.rows == 11
                two_step_run.restart()
            world.it.finish(planned, run)
            if epoch == 2:
                world.killed_at("topic.commit")
            world.it.publish()

        assert self.sums(world) == self.expected(1, 2, 3)
        shown, sent = world.seen(), world.seen("read_uncommitted")
        records = [json.loads(one.value or "") for one in shown]
        assert (len(records), len({one["uuid"] for one in records})) == (30, 30)
        assert len(sent) == 40  # hidden, not de-duplicated: epoch 2 was sent twice
        assert {one.value for one in sent} == {one.value for one in shown}, "X23: sent again with the ids that they had"
        rows = set(world.it.sql("SELECT key1, key2, key3, indicate FROM examples.test_two_step"))
        assert rows == {(one["key1"], one["key2"], one["key3"], one["indicate"]) for one in records}
        assert {key3 for _, _, key3, _ in rows} == {"c0", "c1"}, "X8: the third key, not the second"
        assert set(world.it.sql("SELECT DISTINCT key2, key3 FROM examples.test_two_step_compare")) == {
            (key2, key3) for _, key2, key3, _ in rows
        }

    def test_rows_of_one_slot_are_summed_up_and_nothing_of_them_is_lost(self, shipped: Made) -> None:
        """Equal keys at one time, in one epoch and in two, make one row."""
        world = shipped("sink_comparison")
        line = json.dumps({"key1": "a", "key2": "b", "key3": "c", "indicate": 5})
        producer = producer_to(world.bootstrap)
        for times in (2, 3):
            for _ in range(times):
                producer.produce(world.source, line, partition=0, timestamp=1_772_323_200_000)
            assert producer.flush(30) == 0
            world.it.epoch()

        found = world.it.sql("SELECT key1, key2, key3, indicate FROM examples.test_two_step_compare")
        assert found == [("a", "b", "c", 25)]

    def test_rows_of_the_next_epoch_never_land_in_the_one_that_is_pending(self, shipped: Made) -> None:
        """X9: while epoch 2 is staged and sealed, epoch 1 is published; each sink shows epoch 1 and nothing else."""
        world = shipped("sink_comparison")
        world.epoch(*self.tuples(1))
        world.produce(*self.tuples(2))
        planned, *_ = world.it.sealed()

        assert [one.epoch_id for one in world.it.publish()] == [1]

        assert self.sums(world) == self.expected(1)
        world.it.commit(planned)
        world.it.publish()
        assert self.sums(world) == self.expected(1, 2)

    def test_what_is_no_tuple_is_set_aside_and_takes_no_other_with_it(self, shipped: Made) -> None:
        world = shipped("sink_comparison")
        world.produce(self.tuples(1)[0], '{"key1": "a"}', "nonsense", None)

        assert world.it.epoch().epoch.counts.quarantined == 3

        world.it.publish()
        assert len(world.seen()) == 1


class TestReadOn:
    """Q7, X21."""

    @pytest.fixture
    def counting(self, postgres_dsn: str, kafka_bootstrap: str) -> SinksPipeline:
        """The topic of the counting pipeline, as that declares it, with counts that are made here."""
        (topic,) = find("ip_count_topic", DAGS).topics
        sink = topic.model_copy(update={"aggregated": False})
        return new_world(postgres_dsn, kafka_bootstrap, sink, table=False, parse=Json(columns=topic.record))

    @staticmethod
    def count(second: int, count: int, ip: str = "192.168.1.1") -> str:
        start, end = (f"2019-09-15T10:00:{moment:02}.000000Z" for moment in (second, second + 5))
        return json.dumps({"ip": ip, "window_start": start, "window_end": end, "count": count})

    def rows(self, world: SinksPipeline) -> dict[tuple[str, str], int]:
        second = "to_char(window_start AT TIME ZONE 'UTC', 'SS')"
        found = world.it.sql(f"SELECT ip, {second}, count FROM examples.ip_count_read_on")
        return {(ip, second): count for ip, second, count in found}

    def test_a_killed_reader_ends_with_what_the_topic_holds(self, shipped: Made, counting: SinksPipeline) -> None:
        """Rows equal what a read_committed consumer sees: aborted records are no rows, and of two the last counts."""
        world = shipped("ip_count_read_on", reads=counting.topics[0])
        counting.epoch(self.count(0, 5), self.count(5, 1), self.count(0, 2, "192.168.1.2"))
        counting.killed_at("topic.commit")
        assert world.it.asked_to_plan()[0].outcome is PlanOutcome.NOTHING_TO_READ
        counting.it.publish()
        markers_written(counting.bootstrap)

        world.killed_at("commit.commit", step="epoch")
        assert self.rows(world) == {}
        world.it.asked_to_plan()  # commits what the killed one sealed
        assert self.rows(world) == self.last(counting)
        assert len(self.rows(world)) == 3

        counting.epoch(self.count(0, 6))
        counting.it.publish()
        markers_written(counting.bootstrap)
        world.killed_at("commit.committed", step="epoch")
        world.it.asked_to_plan()

        assert self.rows(world) == self.last(counting)
        assert self.rows(world)[("192.168.1.1", "00")] == 6
        assert len(counting.seen()) == 4, "X21: two records of one window"

    @staticmethod
    def last(counting: SinksPipeline) -> dict[tuple[str, str], int]:
        """The last record of each window, as a read_committed consumer sees them."""
        found = [json.loads(one.value or "") for one in counting.seen()]
        return {(one["ip"], one["window_start"][17:19]): one["count"] for one in found}
