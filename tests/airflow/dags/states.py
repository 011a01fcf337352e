"""Pipelines that `tests.airflow.test_every_state` brings into a state each, named after it."""

from datetime import timedelta
from typing import Any

from epochline import Endless, KafkaSource, KafkaTopic, NoRestart, Pipeline, PostgresTable, Settings, Text, epoch_dag

OF = (
    "stopped", "paused", "dropped", "awaiting_approval", "left_planned", "another_cluster", "topic_gone",
    "topic_made_again", "topic_missing", "head_beyond_end", "unread_records_deleted", "kafka_behind", "ledger_behind",
    "cannot_plan", "failing", "keeps_failing", "keeps_aborting", "quarantining", "staging", "pre-committed", "silent",
    "not_shown_everywhere", "not_started", "behind", "caught_up",
)  # fmt: skip
CHANGED: dict[str, dict[str, Any]] = {
    "keeps_failing": {"settings": Settings(restart=Endless(delay=1, max_delay=2), parallelism=1)},
    "quarantining": {"bad_records": "quarantine"},
    "silent": {"schedule": timedelta(weeks=4)},  # no run of the schedule's own comes in between
}


def state(word: str) -> Pipeline:
    name, columns = f"s_{word}", {"value": "text"}
    sinks: list[Any] = [PostgresTable(table=name, columns=columns)]
    if word == "not_shown_everywhere":
        sinks.append(KafkaTopic(topic=f"{name}_out", value=Text()))
    fields: dict[str, Any] = {
        "source": KafkaSource(topics=name), "parse": "scripted:parse", "record": columns, "sinks": sinks,
        "settings": Settings(restart=NoRestart(), parallelism=1), **CHANGED.get(word, {}),
    }  # fmt: skip
    return Pipeline(name=name, **fields)


globals().update({f"s_{word}": epoch_dag(state(word)) for word in OF})
