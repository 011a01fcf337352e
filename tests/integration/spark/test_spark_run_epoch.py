"""The fixture for authors' tests with a transform, state and windows: a separate pytest starts a JVM."""

import os
import subprocess
import sys
from pathlib import Path

from epochline.local.stack import Stack

ROOT = Path(__file__).parents[3]

USERS = """
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from epochline import EventTime, Json, KafkaSource, Pipeline, PostgresTable, Tumbling, Windowed
from epochline.config.discovery import find
from epochline.testing import Record

EXAMPLES = Path("{root}") / "dags" / "examples"
WINDOW = {{"window_start": "timestamptz", "window_end": "timestamptz", "orders": "bigint"}}
ORDER = {{"id": "bigint", "at": "timestamptz"}}


def order(number, second):
    return {{"id": number, "at": datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC).isoformat()}}


def test_counts_go_on_in_the_next_epoch_and_are_published(run_epoch):
    pipeline = find("running_counts", EXAMPLES)

    first = run_epoch(pipeline, ["a b a"])
    second = run_epoch(pipeline, ["a"])

    assert [record.value for record in second.topics["flink_kafka2"]] == [b"a:::3"]
    counts = [(row["word"], row["count"]) for row in first.state["examples.running_counts"]]
    assert counts == [("a", 2), ("b", 1)]


def test_an_order_waits_for_its_customer_from_another_source(run_epoch):
    pipeline = find("orders_with_customers", EXAMPLES)
    order = {{"order_id": "o1", "customer_id": 1, "amount": 5}}

    waits = run_epoch(pipeline, [Record(value=order, topic="orders/joined_orders"), Record(value="no order", topic="orders/joined_orders")])
    known = run_epoch(pipeline, [Record(value={{"customer_id": 1, "name": "Ada"}}, topic="customers/joined_customers")])

    table = "examples.orders_with_customers"
    assert (waits.rows(table), len(waits.quarantine)) == ([], 1)
    assert known.rows(table) == [{{"order_id": "o1", "customer_id": 1, "name": "Ada", "amount": Decimal("5.00")}}]


def test_a_window_is_corrected_by_a_late_record_and_a_later_one_is_set_apart(run_epoch):
    pipeline = Pipeline(
        name="orders", source=KafkaSource(topics="orders"), parse=Json(columns=ORDER),
        windows=Windowed(
            time=EventTime(column="at", out_of_orderness=0), window=Tumbling(size=5), aggregates={{"orders": "count(*)"}},
            into="totals", lateness=5, too_late="too_late", retractions="adds",
        ),
        sinks=[
            PostgresTable(table="totals", columns={{**WINDOW, "adds": "boolean"}}, aggregated=True),
            PostgresTable(table="too_late", columns=ORDER),
        ],
    )

    opened = run_epoch(pipeline, [order(1, 1), order(2, 2)])
    closed = run_epoch(pipeline, [order(3, 7)])
    late = run_epoch(pipeline, [order(4, 3)])
    too_late = run_epoch(pipeline, [order(5, 30)]), run_epoch(pipeline, [order(6, 1)])

    assert opened.rows("totals") == []
    assert [row["orders"] for row in opened.state["totals_open"]] == [2]
    assert [(row["adds"], row["orders"]) for row in closed.rows("totals")] == [(True, 2)]
    assert [(row["adds"], row["orders"]) for row in late.rows("totals")][-2:] == [(False, 2), (True, 3)]
    assert [row["id"] for row in too_late[1].rows("too_late")] == [6]


def test_what_a_transform_raises_is_told(run_epoch):
    pipeline = find("running_counts", EXAMPLES)
    run_epoch(pipeline.model_copy(update={{"transform": "pipelines.running_counts:words"}}), ["a"])
"""


def test_a_users_tests_of_transforms_states_and_windows_run_in_spark(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "test_in_spark.py").write_text(USERS.format(root=ROOT))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, check=False, text=True,
        env={
            **os.environ, "EPOCHLINE_TEST_POSTGRES": stack.postgres.superuser_dsn, "PYTEST_ADDOPTS": "",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "include"), str(ROOT / "spark_jobs")]),
        },
        capture_output=True,
    )  # fmt: skip

    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "TypeError: words() takes 1 positional argument but 2 were given" in done.stdout
