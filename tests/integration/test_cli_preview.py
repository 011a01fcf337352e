"""`epochline preview` on a real Kafka and a real ledger."""

import os
import subprocess
from pathlib import Path

import pytest

from epochline.config import discovery
from tests.commands import COMMAND, Call
from tests.databases import query
from tests.integration.kafka_topics import admin_of, group_offsets, produce
from tests.integration.people import Patch, declare
from tests.integration.sinks_world import in_process


def written(dsn: str, kafka: str) -> list[object]:
    """Everything that a preview must leave alone: rows of the ledger, tables, topics and the group's offsets."""
    counts = [
        query(dsn, f"SELECT count(*) FROM epochline.{table}")
        for table in ("pipeline", "epoch", "committed_range", "declaration", "quarantined_record", "attempt")
    ]
    with admin_of(kafka) as admin:
        topics = sorted(admin.list_topics())
    tables = query(dsn, "SELECT schemaname, tablename FROM pg_tables ORDER BY 1, 2")
    return [*counts, tables, topics, group_offsets(kafka, "epochline.people")]


def test_the_next_records_are_parsed_and_nothing_is_written(
    call: Call, people_topic: str, kafka_bootstrap: str, postgres_dsn: str
) -> None:
    """The rows, the refusals and their reasons, before the first epoch and without its tables."""
    produce(kafka_bootstrap, people_topic, [b'{"id": 7}', b"nobody", b'{"id": "x"}'], partition=0)
    before = written(postgres_dsn, kafka_bootstrap)

    out, shown = call.shown("preview", "people"), call.json("preview", "people")

    assert out.splitlines()[1].split() == [f"{people_topic}/0/0", "7"]
    assert f"refused {people_topic}/0/1: not JSON: Expecting value at character 0" in out
    assert "people: 3 records read, 1 passed, 0 skipped, 2 refused; nothing was written" in out
    assert "bad_records is 'fail'" in out
    assert [(row["offset"], row["values"]) for row in shown["rows"]] == [(0, {"id": 7})]
    assert [one["offset"] for one in shown["refused"]] == [1, 2]
    assert written(postgres_dsn, kafka_bootstrap) == before


def test_a_preview_begins_at_the_heads_also_while_the_pipeline_is_paused(
    call: Call, fed: str, kafka_bootstrap: str, postgres_dsn: str
) -> None:
    in_process(postgres_dsn, kafka_bootstrap, discovery.find("people")).epoch()
    call("pause", "people", "--reason", "the parse is being mended", "--yes")

    rows = call.json("preview", "people", "--records", 4)["rows"]

    assert {(row["partition"], row["offset"]) for row in rows} == {(0, 50), (0, 51), (1, 50), (1, 51)}


def test_a_row_that_deletes_its_key_says_so(
    call: Call, people_topic: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    declare(tmp_path, people_topic, table='mode="upsert", key="id"')
    produce(kafka_bootstrap, people_topic, [b'{"id": 7}'], partition=0)
    produce(kafka_bootstrap, people_topic, [None], partition=0, key=b'{"id": 8}')

    out, shown = call.shown("preview", "people"), call.json("preview", "people")

    assert [line.split()[1:] for line in out.splitlines()[:3]] == [
        ["effect", "id"], ["writes", "7"], ["deletes", "its", "key", "8"],
    ]  # fmt: skip
    assert [row["deletes"] for row in shown["rows"]] == [False, True]


def test_without_new_records_there_is_nothing_to_show(call: Call, people_topic: str) -> None:
    assert call("preview", "people") == (0, "people: no record to read; nothing was written\n", "")


def test_a_parse_that_raises_is_named_with_its_line(
    call: Call, people_topic: str, kafka_bootstrap: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "parse_of_a_preview.py").write_text("def parse(batch):\n    return batch / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    declare(tmp_path, people_topic, parse="parse='parse_of_a_preview:parse', record={'id': 'bigint'}")
    produce(kafka_bootstrap, people_topic, [b"1"], partition=0)

    err = call.refusal("preview", "people")

    assert "people: the parse raised TypeError: unsupported operand" in err
    assert "parse_of_a_preview.py:2)" in err


TRANSFORM = """
from pyspark.sql import functions as F


def fits(records, state):
    return {"people": records.groupBy("id").agg(F.count("*").alias("seen"))}


def lacks(records, state):
    return {"people": records.groupBy("id").agg(F.count("*").alias("count"))}


def does_not_fit(records, state):
    return {"people": records.groupBy("id").agg(F.lit("many").alias("seen"))}


def raises(records, state):
    return {"people": records.groupBy(state["nowhere"])}
"""


@pytest.mark.server
@pytest.mark.parametrize(
    ("transform", "said"),
    [
        ("fits", "people: the transform transform_of_a_preview:fits makes 2 rows of them, with empty state tables"),
        ("lacks", "the transform's DataFrame has no seen; it has id, count"),
        ("does_not_fit", "people: seen: a value does not fit bigint (not an integer)"),
        ("raises", "people: the transform transform_of_a_preview:raises raised KeyError: 'nowhere'"),
    ],
)
def test_a_transform_is_run_over_the_rows_and_its_result_is_checked(
    call: Call, people_topic: str, kafka_bootstrap: str, postgres_dsn: str, tmp_path: Path, monkeypatch: Patch,
    transform: str, said: str,
) -> None:  # fmt: skip
    """N4, issue 35: what only a transform shows is known before the first epoch."""
    (tmp_path / "transform_of_a_preview.py").write_text(TRANSFORM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    state = "StateTable(table='people_state', key='id', columns={'id': 'bigint', 'seen': 'bigint'})"
    more = f"transform='transform_of_a_preview:{transform}', state={state}"
    parse = "parse=Json(columns={'id': 'bigint'})"
    declare(tmp_path, people_topic, parse=parse, table="aggregated=True", more=more, id="bigint", seen="bigint")
    assert "not run: transforms; `epochline preview people`" in call("validate", "people")[1]
    produce(kafka_bootstrap, people_topic, [b'{"id": 7}', b'{"id": 7}', b'{"id": 8}', b"nobody"], partition=0)
    before = written(postgres_dsn, kafka_bootstrap)

    # A process has one Spark, and an earlier test may have started one here.
    done = subprocess.run([*COMMAND, "preview", "people"], capture_output=True, text=True, check=False)

    assert said in " ".join((done.stdout + done.stderr).split())
    assert done.returncode == {"fits": 0, "lacks": 2}.get(transform, 1)
    assert written(postgres_dsn, kafka_bootstrap) == before
    if transform == "fits":
        assert "3 passed, 0 skipped, 1 refused" in done.stdout
        assert {("7", "2"), ("8", "1")} <= {tuple(line.split()) for line in done.stdout.splitlines()}
