"""Every state of a pipeline, in every place that speaks of it: what each place says, and the step that ends the state."""

import json
import os
import re
import shlex
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from epochline.cli.faults import FaultWord
from epochline.config.discovery import find
from epochline.errors import SinkError
from epochline.kafka.source import KafkaOffsets
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.standing import StandingWord
from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.half_way import let_go
from tests.airflow.page_requests import ask, token_of
from tests.commands import Call, caller
from tests.conftest import AIRFLOW_DAGS
from tests.databases import query
from tests.integration.in_process import InProcess, from_kafka
from tests.integration.kafka_topics import admin_of, delete_records, delete_topic
from tests.integration.logins import superuser
from tests.ways import way_on

TABLE = Path(__file__).parents[2] / "docs" / "data" / "states.tsv"
HEAD = "state\tlag --fail-above\tstatus\tother word of the pages\ttrigger\tits run\n"
ELSEWHERE = {
    FaultWord.TRUNCATED: "tests/integration/test_data_loss.py", FaultWord.PARTITION_GONE: "tests/unit/test_cli_lag.py",
    FaultWord.STANDS: "tests/unit/test_cli_lag.py",
}  # fmt: skip
"""Words of single partitions, and what one broker cannot do."""

NOT_RECORDED = {"Kafka behind", "ledger behind"}
"""States of which no plan has told yet."""

OF_EPOCHS = {StandingWord.UNDONE, StandingWord.ABORTED, StandingWord.COMMITTED}
WORDS = [word.value for kind in (StandingWord, FaultWord) for word in kind if word not in OF_EPOCHS]


@dataclass
class Night:
    scheduler: Scheduler
    call: Call
    runs: dict[str, str] = field(default_factory=dict)
    lines: dict[str, InProcess] = field(default_factory=dict)

    @cached_property
    def brokers(self) -> str:
        return self.scheduler.stack.kafka.bootstrap_servers

    def line(self, name: str) -> InProcess:
        if name not in self.lines:
            settings = {"bootstrap.servers": self.brokers}
            declared = find(name, AIRFLOW_DAGS)
            dsn = self.scheduler.stack.postgres.dsn()
            self.lines[name] = InProcess(dsn, declared, KafkaOffsets(settings), from_kafka(self.brokers), settings)
        return self.lines[name]

    def committed(self, name: str, *values: str, **options: Any) -> InProcess:
        self.scheduler.prepare(name, {0: values or ["a", "b"], 1: ["c"]})
        line = self.line(name)
        line.epoch(**options)
        return line

    def ok(self, *arguments: str) -> str:
        code, out, err = self.call(*arguments)
        assert code == 0, out + err
        return out + err

    def listed(self) -> dict[str, str]:
        """The state of each pipeline by `list`. The tests declare others that cannot be asked."""
        _, out, _ = self.call("list", "--json")
        return {one["pipeline"]: one["state"] for one in json.loads(out)}

    def run(self, name: str, *values: str) -> None:
        self.scheduler.prepare(name, {0: values})
        self.runs[name] = self.scheduler.trigger(name)

    def sql(self, text: str) -> None:
        self.scheduler.query(f"{text}; SELECT 1")


Step = Callable[[Night, str], object]


def committed(*values: str, **options: Any) -> Step:
    return lambda night, name: night.committed(name, *values, **options)


def ordered(command: str) -> Step:
    def bring(night: Night, name: str) -> None:
        night.committed(name)
        night.ok(command, name, "--reason", "the disk is full", "--yes")

    return bring


def changed(text: str, first: Step = lambda night, name: None) -> Step:
    """What SQL does to the pipeline's table ({0}), or to its rows in the ledger."""

    def bring(night: Night, name: str) -> None:
        first(night, name)
        night.sql(text.format(name) if "{0}" in text else f"{text} WHERE pipeline = '{name}'")

    return bring


def reads(*values: str) -> Step:
    return lambda night, name: night.run(name, *(value.format(name) for value in values))


def produced(topic: str, *values: str) -> Step:
    return lambda night, name: night.scheduler.produce(topic.format(name), {0: values} if values else {})


def stopped(night: Night, name: str) -> None:
    night.scheduler.make_targets(name)
    night.sql(f"ALTER TABLE {name} ADD CONSTRAINT no_spaces CHECK (value NOT LIKE '%% %%')")
    night.run(name, "a value")


def sealed(night: Night, name: str) -> None:
    night.scheduler.prepare(name, {0: ["a"]})
    night.line(name).sealed()


def planned(night: Night, name: str) -> None:
    night.scheduler.prepare(name, {0: ["a"]})
    night.line(name).planned()


def topic_gone(night: Night, name: str) -> None:
    night.committed(name)
    delete_topic(night.brokers, name)


def made_again(night: Night, name: str) -> None:
    topic_gone(night, name)
    night.scheduler.produce(name, {0: ["other"]})


def beyond_end(night: Night, name: str) -> None:
    line = night.committed(name)
    with line.ledger.transaction() as tx:
        epoch = tx.epochs.lock(name, 1)
        first = next(one for one in tx.epochs.ranges(epoch) if one.tp.partition == 0)
        assert tx.chain.advance(epoch, replace(first, range=OffsetRange(start=first.range.until, until=9)))
    further = "UPDATE epochline.planned_range SET until_offset = 9 WHERE (pipeline, epoch_id, partition) = (%s, 1, 0)"
    admin = superuser(night.scheduler.stack, line.dsn)
    query(admin, f"SET session_replication_role = replica; {further} RETURNING 1", name)


def unread_deleted(night: Night, name: str) -> None:
    night.committed(name)
    night.scheduler.produce(name, {0: ["lost", "kept"]})
    delete_records(night.brokers, name, {0: 3})
    night.runs[name] = night.scheduler.trigger(name)


def kafka_behind(night: Night, name: str) -> None:
    night.committed(name)
    with admin_of(night.brokers) as admin:
        admin.delete_groups([f"epochline.{name}"])


def ledger_behind(night: Night, name: str) -> None:
    line = night.committed(name)
    with line.ledger.transaction() as tx:
        heads = tx.chain.heads(name, 1)
    line.source.mirror(f"epochline.{name}", heads, 1, 9, str(uuid.uuid4()), 9)


def cannot_plan(night: Night, name: str) -> None:
    night.committed(name)
    night.sql(f"ALTER TABLE {name} RENAME COLUMN value TO other")
    night.scheduler.produce(name, {0: ["d"]})
    night.runs[name] = night.scheduler.trigger(name)


def topic_missing(night: Night, name: str) -> None:
    night.scheduler.make_targets(name)
    night.runs[name] = night.scheduler.trigger(name)


def keeps_aborting(night: Night, name: str) -> None:
    night.run(name, "raise")
    for _ in range(2):
        night.runs[name] = night.scheduler.trigger(name)


def not_shown(night: Night, name: str) -> None:
    night.scheduler.produce(f"{name}_out", {})
    night.scheduler.prepare(name, {0: ["a"]})
    line = night.line(name)
    planned, _, _ = line.sealed()
    delete_topic(night.brokers, f"{name}_out")
    line.commit(planned)
    with pytest.raises(SinkError):
        line.publish()


@dataclass(frozen=True)
class Case:
    """How a state comes about (``bring``) and how its cause is mended (``mend``, before the printed step).

    ``run`` is the state of Airflow's run that did it, ``trigger`` the exit code of `epochline trigger` while the state
    lasts (None where it would end it), ``pages`` what the pages say, where they know less than Kafka, and ``then`` the
    state after the printed step; whatever it is, a run ends it.
    """

    bring: Step
    run: str | None = None
    trigger: int | None = None
    pages: str | None = None
    mend: Step = lambda night, name: None
    then: str | None = None


EXPIRED = "UPDATE epochline.epoch SET lease_until = clock_timestamp() - interval '1 s'"
OUTSIDE = "UPDATE epochline.epoch SET approval = 'awaited', judged_attempt = attempt, outside = 'many rows'"
LONG_AGO = "UPDATE epochline.pipeline SET last_plan_at = last_plan_at - interval '90 days'"
WITH_ITS_TOPIC = produced("{}", "again")
CASES: dict[str, Case] = {
    "dropped": Case(ordered("drop"), trigger=1),
    "stopped": Case(stopped, "failed", 1, mend=changed("ALTER TABLE {0} DROP CONSTRAINT no_spaces")),
    "paused": Case(ordered("pause"), trigger=1),
    "unread records deleted": Case(unread_deleted, "failed", 1),
    "cannot plan": Case(cannot_plan, "failed", 1, mend=changed("ALTER TABLE {0} RENAME COLUMN other TO value")),
    "awaiting approval": Case(changed(OUTSIDE, sealed)),
    "keeps aborting": Case(keeps_aborting, "failed"),
    "keeps failing": Case(reads("raise"), "running"),
    "failing": Case(reads("raise"), "failed", 1),
    "left planned": Case(changed(EXPIRED, planned)),
    "staging": Case(reads("wait {}-may-go"), "running", mend=lambda night, name: let_go(night.scheduler, name)),
    "pre-committed": Case(sealed),
    "quarantining": Case(reads(*["bad"] * 20, *map(str, range(100))), "success"),
    "not shown everywhere": Case(not_shown, mend=produced("{}_out")),
    "silent": Case(changed(LONG_AGO, committed())),
    "not started": Case(lambda night, name: night.scheduler.prepare(name, {0: ["a"]})),
    "behind": Case(committed("a", "b", "c", record_limit=1)),
    "caught up": Case(committed(), trigger=0),
    "another cluster":
        Case(changed("UPDATE epochline.pipeline SET cluster_id = 'the old one'", committed()), trigger=1, pages="cannot plan"),
    "topic gone": Case(topic_gone, trigger=1, pages="cannot plan", mend=WITH_ITS_TOPIC),
    "topic made again": Case(made_again, trigger=1, pages="cannot plan"),
    "topic missing": Case(topic_missing, "failed", 1, pages="cannot plan", mend=WITH_ITS_TOPIC),
    "head beyond end": Case(beyond_end, trigger=1, pages="cannot plan"),
    "Kafka behind": Case(kafka_behind, pages="caught up"),
    "ledger behind": Case(ledger_behind, pages="caught up"),
}  # fmt: skip
NAMES = {word: f"s_{word.lower().replace(' ', '_')}" for word in CASES}


@dataclass(frozen=True)
class Seen:
    """What every place says of a state."""

    lag: str
    list: str
    code: int
    status: bool
    in_list: str
    page: str
    trigger: int | None
    run: str | None
    since: str
    """What `lag` says of its beginning; empty where it says nothing."""
    since_on_page: bool
    step: str | None
    """The command that `lag` prints, without ``epochline``."""
    step_on_page: str | None

    def row(self, word: str) -> str:
        page = None if self.page == word else self.page
        cells = (self.code, "named" if self.status else None, page, self.trigger, self.run)
        return "\t".join([word, *("-" if cell is None else str(cell) for cell in cells)]) + "\n"


@pytest.fixture
def night(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Night]:
    home = scheduler.stack.home.root
    monkeypatch.setenv("EPOCHLINE_HOME", str(home))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(AIRFLOW_DAGS))
    monkeypatch.setenv("COLUMNS", "400")
    (home / "forgive").unlink(missing_ok=True)
    yield Night(scheduler, caller(monkeypatch, capsys))
    scheduler.pause(NAMES["silent"], True)
    (home / "forgive").unlink(missing_ok=True)


def test_every_word_is_brought_about_or_shown_elsewhere() -> None:
    """A state that is new in the code has no row before it has a case."""
    assert set(WORDS) == {*CASES, *ELSEWHERE}
    rows = TABLE.read_text().splitlines()[1:]
    assert [row.partition("\t")[0] for row in rows] == list(CASES)


def test_each_state_has_one_word_everywhere_and_its_printed_step_ends_it(night: Night) -> None:
    """U3: the places are those of the page, and so is what they say."""
    for word, case in CASES.items():
        case.bring(night, NAMES[word])
    for word, case in CASES.items():
        arrived(night, NAMES[word], case)
    seen = look(night)
    rows = "".join(one.row(word) for word, one in seen.items())
    if os.environ.get("EPOCHLINE_WRITE_STATES"):
        TABLE.write_text(HEAD + rows)
    assert HEAD + rows == TABLE.read_text()
    for word, one in seen.items():
        assert CASES[word].pages or one.lag == one.page, word
        assert one.lag == one.list == word
        assert one.in_list == one.page
        if one.code == 3 and word not in NOT_RECORDED:
            assert (bool(one.since), one.since_on_page) == (True, True), word
        if one.step is not None and CASES[word].pages is None:
            assert one.step == one.step_on_page

    (night.scheduler.stack.home.root / "forgive").touch()
    for word, case in CASES.items():
        case.mend(night, NAMES[word])
    for word, one in seen.items():
        carry_out(night, NAMES[word], one.step)
    ended(night)


def arrived(night: Night, name: str, case: Case) -> None:
    """Wait until what Airflow does has brought the state about."""
    if case.run in ("failed", "success"):
        assert night.scheduler.wait(name, night.runs[name]) == case.run
    elif case.run == "running":
        failures = "SELECT failures FROM epochline.standings WHERE pipeline = %s"
        wanted = 3 if name == NAMES["keeps failing"] else 0
        begun = "SELECT count(*) FROM epochline.attempts WHERE pipeline = %s"
        eventually("it is staged", lambda: night.scheduler.count(begun, name) > 0)
        eventually("it has failed", lambda: night.scheduler.count(failures, name) >= wanted)


def look(night: Night) -> dict[str, Seen]:
    """Ask every place about every state; `trigger` before the others, where a run changes nothing."""
    tried = {}
    for word, case in CASES.items():
        if case.trigger is not None:
            code, out, err = night.call("trigger", NAMES[word])
            assert (code, word) == (case.trigger, word), out + err
            tried[word] = code
    listed = night.listed()
    status = night.ok("status")
    token = token_of(night.scheduler, "grace")
    pages = ask(night.scheduler, "/", token).text
    seen = {}
    for word, name in NAMES.items():
        code, said, _ = night.call("lag", name, "--fail-above", "1000000")
        page = ask(night.scheduler, f"/pipelines/{name}", token).text
        row = next((one for one in pages.split("<tr")[1:] if f'pipelines/{name}"' in one), "")
        run = night.runs.get(name)
        seen[word] = Seen(
            lag=re.split(r"\s{2,}", said.splitlines()[1].strip())[-1],
            list=listed[name],
            code=code,
            status=f"{name} (" in status,
            in_list=badge(row),
            page=badge(page),
            trigger=tried.get(word),
            run=night.scheduler.state(name, run) if run else None,
            since="".join(re.findall(rf"^{name}: stands since ([-0-9: ]+) UTC\. ", said, re.MULTILINE)),
            since_on_page="since" in page.partition('class="badge')[2].partition("</p>")[0],
            step=way_on(said),
            step_on_page=command(page),
        )
    return seen


def badge(html: str) -> str:
    found = re.search(r'class="badge [a-z]+">([^<,]+)', html)
    return unescape(found[1]).strip() if found else ""


def command(html: str) -> str | None:
    found = re.search(
        r'class="command">epochline ([^<]+)<', html.partition('class="badge')[2].partition("</section>")[0]
    )
    return unescape(found[1]) if found else None


def carry_out(night: Night, name: str, step: str | None) -> None:
    """Run the printed command as it is, with a reason for the ellipsis. A quarantine's own step comes from its output."""
    if step is None:
        return
    words = [one if one != "…" else "the cause is mended" for one in shlex.split(step)]
    asks = ["--yes"] if "--reason" in words else []
    said = night.ok(*words, *asks)
    if words[0] == "quarantine":
        carry_out(night, name, said.strip().splitlines()[-1].removeprefix("epochline "))


def ended(night: Night) -> None:
    """The step ended the state, or a run does, which commits what is left."""
    listed = night.listed()
    kafka = {NAMES[word] for word in FaultWord if word in NAMES}
    names = [name for word, name in NAMES.items() if word != "dropped"]
    runs = {name: night.scheduler.trigger(name) for name in names if name in kafka or listed[name] != "caught up"}
    for name, run in runs.items():
        assert night.scheduler.wait(name, run) == "success", night.call("lag", name)
    listed = night.listed()
    assert {name: listed[name] for name in names} == dict.fromkeys(names, "caught up")
