"""Tables and topics of the shipped DAGs, and what several tests ask of their sinks."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2

import epochline_examples
from epochline.config.discovery import EXAMPLES
from epochline.config.places import project_folder
from tests.airflow.conftest import SHIPPED, Scheduler
from tests.declared import find_all
from tests.integration.kafka_topics import admin_of, make_topic
from tests.integration.sinks_world import seen


def make_ready(scheduler: Scheduler) -> None:
    """Make the tables and topics of all shipped DAGs, as far as they are missing: inputs of one partition, outputs of three."""
    run_sql(scheduler, "raw_value.sql")
    for pipeline in (*SHIPPED, "access_log"):
        scheduler.make_targets(pipeline)
    declared = find_all(project_folder() / "dags" / EXAMPLES).values()
    written = {sink.topic for one in declared for sink in one.topics}
    sources = [source for one in declared for source in one.kafka_sources.values()]
    read = {topic for source in sources for topic in source.topics} | {"access_log"}
    servers = scheduler.stack.kafka.bootstrap_servers
    with admin_of(servers) as admin:
        there = set(admin.list_topics())
    for topic in (read | written) - there:
        make_topic(servers, topic, 3 if topic in written else 1)


def run_sql(scheduler: Scheduler, text: str) -> None:
    """Run a SQL file of the programs, or a statement."""
    file = Path(epochline_examples.__file__).with_name(text)
    with closing(psycopg2.connect(scheduler.stack.postgres.dsn())) as session, session, session.cursor() as cursor:
        cursor.execute(file.read_text() if text.endswith(".sql") else text)


def three_sinks(scheduler: Scheduler) -> Any:
    """Per sink of the comparison: records, distinct ones, and their sum."""
    sent = [
        json.loads(value)
        for value in (one.value or "" for one in seen(scheduler.stack.kafka.bootstrap_servers, "flink_output"))
    ]
    tables = "SELECT count(*)::int, count(DISTINCT key1)::int, sum(indicate)::int FROM examples."
    return [
        (len(sent), len({one["uuid"] for one in sent}), sum(one["indicate"] for one in sent)),
        *scheduler.query(f"{tables}test_two_step"),
        *scheduler.query(f"{tables}test_two_step_compare"),
    ]
