"""A real Prometheus scrapes the plugin: each shipped alert fires by its fault, each panel of the dashboard finds data."""

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from epochline import KafkaSource, KafkaTopic, Pipeline, PostgresTable, Text
from epochline.errors import EpochlineError
from epochline.kafka.source import KafkaOffsets
from epochline.operations import refresh_log_ends
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.protocol.standing import StandingWord
from epochline.spark.job import writer_of
from tests.integration.in_process import InProcess, from_kafka
from tests.integration.kafka_topics import make_topic, produce
from tests.integration.logins import AsSuperuser, login, reader, user
from tests.integration.prometheus import (
    ROOT,
    RULES,
    SERVE,
    SHIPPED,
    Prometheus,
    needs_prometheus,
    plugin,
    prometheus,
)
from tests.job import write_as_spark
from tests.waiting import wait_for

__all__ = ["login", "reader"]

PAGE = ROOT / "docs" / "observability.md"
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
OF_ONE = 'pipeline="orders"'
THRESHOLDS: dict[str, tuple[str, str, str, str]] = {
    # Series, its values where the alert is silent, its values where it fires, and after which time.
    "EpochlineNotScraped": ('up{job="epochline"}', "1x90", "0x90", "6m"),
    "EpochlineLedgerDown": ("epochline_up", "1x90", "0x90", "6m"),
    "EpochlineKafkaSilent": (f"epochline_log_ends_age_seconds{{{OF_ONE}}}", "900x90", "901x90", "6m"),
    "EpochlineStands": (f'epochline_pipeline_state{{{OF_ONE}, state="stopped"}}', "0x90", "1x90", "6m"),
    "EpochlineSilent": (f'epochline_pipeline_state{{{OF_ONE}, state="silent"}}', "0x90", "1x90", "6m"),
    "EpochlineBehind": (f"epochline_lag_seconds{{{OF_ONE}}}", "3600x90", "3601x90", "16m"),
    "EpochlineLossNear": (f"epochline_time_to_loss_seconds{{{OF_ONE}}}", "21600x90", "21599x90", "6m"),
    "EpochlineEpochOld": (f"epochline_unfinished_epoch_age_seconds{{{OF_ONE}}}", "3600x90", "3601x90", "6m"),
    "EpochlineUnpublished": (f'epochline_unpublished_epochs{{{OF_ONE}, sink="out"}}', "0x90", "1x90", "16m"),
    "EpochlineRetrying": (f"epochline_retries_total{{{OF_ONE}}}", "0x57 2x40", "0x57 6x40", "60m"),
    "EpochlineQuarantining": (f"epochline_records_quarantined_total{{{OF_ONE}}}", "0+9x90", "0+11x90", "60m"),
    "EpochlineTooLate": (f"epochline_records_too_late_total{{{OF_ONE}}}", "7x90", "7x30 8x60", "60m"),
    "EpochlineFenced": (f"epochline_fenced_writes_total{{{OF_ONE}}}", "7x90", "7x30 8x60", "60m"),
}


def test_each_alert_names_a_section_of_the_page_and_every_state_in_which_a_pipeline_stands() -> None:
    """Issue 40: a runbook for each alert."""
    headings = re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE)

    assert [one["alert"] for one in ALERTS] == headings
    for one in ALERTS:
        assert one["annotations"]["runbook_url"].endswith(f"/docs/observability.md#{one['alert'].lower()}")
    [stands] = [one["expr"] for one in ALERTS if one["alert"] == "EpochlineStands"]
    own = {
        StandingWord.DROPPED,
        StandingWord.FAILING,
        StandingWord.QUARANTINING,
    }  # gone; may pass; EpochlineQuarantining
    assert set(re.search('"(.*)"', stands)[1].split("|")) == {word for word in StandingWord if word.stands} - own  # type: ignore[index]


@needs_prometheus
def test_each_alert_fires_beyond_its_threshold_and_only_there(tmp_path: Path) -> None:
    """Issue 40: by promtool, with the time that each alert waits."""
    rate = {"series": f"epochline_records_total{{{OF_ONE}}}", "values": "0+100x90"}
    awaits = {"series": f'epochline_pipeline_state{{{OF_ONE}, state="awaiting approval"}}', "values": "1x90"}
    cases = [
        (name, values, fires, rate) for name, (_, *both, _) in THRESHOLDS.items() for fires, values in enumerate(both)
    ]
    cases.append(("EpochlineEpochOld", "3601x90", 0, awaits))
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": THRESHOLDS[name][0], "values": values}, beside],
            "promql_expr_test": [{
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
                "eval_time": THRESHOLDS[name][3], "exp_samples": [{"labels": "{}", "value": fires}],
            }],
        }
        for name, values, fires, beside in cases
    ]  # fmt: skip
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))

    assert {one["alert"] for one in ALERTS} == {*THRESHOLDS}
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(file)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


class Night:
    """Pipelines on a real ledger and a real Kafka, each with its own fault."""

    def __init__(self, dsn: str, brokers: str) -> None:
        self.dsn, self.brokers = dsn, brokers

    def line(self, what: str, *values: bytes, ago: timedelta = timedelta(0), **declared: Any) -> InProcess:
        name, configs = f"alerts_{what}", declared.pop("configs", {})
        make_topic(self.brokers, name, **configs)
        self.produce(name, *values or (b"a", b"b"), ago=ago)
        table = PostgresTable(table=name, columns={"value": "text"})
        fields = {"sinks": [table], "source": KafkaSource(topics=name), "parse": Text(), "bad_records": "quarantine"}
        pipeline = Pipeline(**{"name": name, **fields, **declared})
        kafka = {"bootstrap.servers": self.brokers}
        made = InProcess(self.dsn, pipeline, KafkaOffsets(kafka), from_kafka(self.brokers), kafka)
        return made.create()

    def produce(self, topic: str, *values: bytes, ago: timedelta = timedelta(0)) -> None:
        at = int((datetime.now(UTC) - ago).timestamp() * 1000)
        produce(self.brokers, topic, values, timestamp_ms=at)

    def refresh(self, *lines: InProcess) -> None:
        for line in lines:
            refresh_log_ends(line.ledger, line.source, [line.pipeline], "epochline_kafka")


HOUR = timedelta(hours=1)


def bring_about(night: Night) -> tuple[dict[str, str], Callable[[], None]]:
    """Commit an epoch of each pipeline; the faults that come at once, by alert; and what brings about the others."""
    healthy = night.line("healthy")
    healthy.epoch()
    stands, silent = night.line("stands"), night.line("silent", schedule=timedelta(seconds=1))
    behind = night.line("behind", b"a", b"b", ago=2 * HOUR)
    loss = night.line("loss", b"a", b"b", ago=0.5 * HOUR, configs={"retention.ms": str(3 * 3_600_000)})
    dark, old = night.line("dark"), night.line("old")
    topic = KafkaTopic(topic=make_topic(night.brokers, "alerts_out"), value=Text())
    table = PostgresTable(table="alerts_unpublished", columns={"value": "text"})
    unpublished = night.line("unpublished", sinks=[table, topic])
    unpublished.epoch()
    unpublished.publish()
    retrying, bad, late, fenced = (night.line(one) for one in ("retrying", "bad", "late", "fenced"))
    for line in (stands, silent, dark, retrying, bad, late, fenced):
        line.epoch()
    for line in (behind, loss):
        line.epoch(record_limit=1)
        night.refresh(line)
    with stands.ledger.transaction() as tx:
        tx.operators.pause(stands.name, "ada", "a test says so")
    night.produce(old.name, b"c")
    old.sealed()
    old.sql(
        "UPDATE epochline.epoch SET planned_at = planned_at - interval '2 h' WHERE pipeline = %s RETURNING 1", old.name
    )
    dark.sql(
        "UPDATE epochline.log_end SET observed_at = observed_at - interval '16 min' WHERE pipeline = %s RETURNING 1",
        dark.name,
    )
    # A table of state, for the panels.
    healthy.sql(
        "CREATE TABLE alerts_totals (k text); INSERT INTO epochline.state_table (schema_name, table_name, relation)"
        " VALUES ('public', 'alerts_totals', 'alerts_totals'::regclass); INSERT INTO epochline.state_version"
        " (pipeline, state, epoch_id, keys, digest) VALUES ('alerts_healthy', 'alerts_totals', 1, 0, 0) RETURNING 1"
    )

    def later() -> None:
        night.produce(unpublished.name, b"c")
        unpublished.epoch()  # its run ends before the task `publish`
        night.produce(retrying.name, b"c")
        planned, run = retrying.planned()
        for _ in range(6):
            retrying.attempt(planned, run)
        retrying.finish(planned, run)
        night.produce(bad.name, *[b"\xff"] * 5)
        bad.epoch()
        night.produce(late.name, b"c")
        late.epoch()
        late.sql(
            "UPDATE epochline.epoch SET records_too_late = 1 WHERE pipeline = %s AND epoch_id = 2 RETURNING 1",
            late.name,
        )
        night.produce(fenced.name, b"c")
        planned, run = fenced.planned()
        ticket = fenced.attempt(planned, run)
        lost = read_plan(fenced.dsn, ticket.pipeline, ticket.epoch_id, ticket.attempt)
        fenced.staged_and_sealed(planned, run)
        with suppress(EpochlineError):
            write_as_spark(writer_of(lost, fenced.dsn), [iter(fenced.read(one)) for one in planned.ranges])
        fenced.commit(planned)

    at_once = {
        "Stands": stands,
        "Silent": silent,
        "Behind": behind,
        "LossNear": loss,
        "KafkaSilent": dark,
        "EpochOld": old,
    }
    by_and_by = {
        "Unpublished": unpublished, "Retrying": retrying, "Quarantining": bad, "TooLate": late, "Fenced": fenced,
    }  # fmt: skip
    return {f"Epochline{alert}": line.name for alert, line in (at_once | by_and_by).items()}, later


@needs_prometheus
@pytest.mark.slow
def test_each_alert_fires_once_by_its_fault_and_each_panel_finds_data(
    postgres_dsn: str, reader: str, kafka_bootstrap: str, as_superuser: AsSuperuser, tmp_path: Path
) -> None:
    """Issue 40. The hours of three faults pass in the ledger, by SQL; so does the record that is too late."""
    expected, later = bring_about(Night(postgres_dsn, kafka_bootstrap))
    with plugin(reader, tmp_path) as served, prometheus(served, tmp_path) as scraping:
        wait_for("it has scraped twice", lambda: (scraping.value("count_over_time(epochline_up[1m])") or 0) > 2)
        later()

        wait_for("each alert fires", lambda: {*expected.items()} <= {*scraping.firing()})

        assert scraping.firing() == sorted(expected.items())
        assert empty_panels(scraping) == []
        as_superuser(
            f"ALTER ROLE {user(reader)} NOLOGIN",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user(reader)}'",
        )
        wait_for("the ledger is down", lambda: ("EpochlineLedgerDown", "") in scraping.firing())
        assert not {"EpochlineStands", "EpochlineBehind"} & {name for name, _ in scraping.firing()}, "an old value"
        served.process.kill()
        wait_for("the server is down", lambda: ("EpochlineNotScraped", "") in scraping.firing())


def empty_panels(scraping: Prometheus) -> list[str]:
    """The titles of panels whose query finds nothing."""
    board = json.loads((SHIPPED / "dashboard.json").read_text())
    variables = {"$pipeline": ".*", "$__rate_interval": "1m"}
    empty = []
    for panel in board["panels"]:
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in variables.items():
                text = text.replace(name, value)
            if not scraping.query(text):
                empty.append(panel["title"])
    return empty


@needs_prometheus
def test_prometheus_scrapes_the_plugin_with_the_token_of_a_file_and_nobody_else_gets_an_answer(
    postgres_dsn: str, reader: str, as_superuser: AsSuperuser, tmp_path: Path
) -> None:
    """Issue 40, SEC-3: as the shipped configuration says. A ledger that goes away is told by the next scrape."""
    with plugin(reader, tmp_path) as served, prometheus(served, tmp_path) as scraping:
        wait_for("it was scraped", lambda: scraping.value('up{job="epochline"}') == 1)
        assert scraping.value("epochline_up") == 1
        asked = {given: served.ask(given)[0] for given in (None, "", served.token[:-1], f"{served.token}x", "é")}
        assert not {200} & set(asked.values()), asked
        status, kind, text = served.ask(served.token, accept="application/openmetrics-text; version=1.0.0")
        assert (status, kind.partition(";")[0], text.endswith("# EOF\n")) == (200, "application/openmetrics-text", True)
        assert served.ask(served.token, "/api/pipelines")[0] != 200, "the token opens one page"

        replaced = "another-token-of-which-nobody-knew"
        served.token_file.chmod(0o600)
        before = served.token
        served.token_file.write_text(replaced)
        assert (served.ask(before)[0] == 200, served.ask(replaced)[0]) == (False, 200)
        wait_for("it is scraped again", lambda: scraping.value('up{job="epochline"}') == 1)
        as_superuser(f"REVOKE epochline_reader FROM {user(reader)}")

        wait_for("the ledger is down", lambda: scraping.firing() == [("EpochlineLedgerDown", "")])

        for secret in (before, replaced):
            assert secret not in served.log.read_text()


def test_a_server_without_the_library_names_it_and_has_its_other_pages(reader: str, tmp_path: Path) -> None:
    with plugin(reader, tmp_path, f"import sys; sys.modules['prometheus_client'] = None\n{SERVE}") as served:
        status, _, text = served.ask(served.token)

        assert (status, served.ask(None, "/")[0]) == (503, 401)
        assert "prometheus_client is not installed here" in text
