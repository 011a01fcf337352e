"""The fixture for authors' tests: records in; rows, quarantine, state and topics out, on a real PostgreSQL."""

import subprocess
import sys
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from epochline import CustomSource, Files, Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Text
from epochline.errors import BadRecordError, ConfigurationError, TargetError
from epochline.local.stack import Stack
from epochline.testing import EpochRunner, Record
from tests.databases import query
from tests.integration.logins import Login

COLUMNS = {"id": "bigint", "customer": "text", "amount": "numeric(12,2)"}

ADA, GRACE = ({"id": 1, "customer": "ada", "amount": 12.5}, {"id": 2, "customer": "grace", "amount": 30})
ROWS = [
    {"id": 1, "customer": "ada", "amount": Decimal("12.50")},
    {"id": 2, "customer": "grace", "amount": Decimal("30.00")},
]


@pytest.fixture(scope="session")
def epochline_postgres(stack: Stack) -> str:
    return stack.postgres.superuser_dsn


def orders(*sinks: object, **fields: object) -> Pipeline:
    declared = {
        "name": "orders", "source": KafkaSource(topics="orders", startup="latest"), "parse": Json(columns=COLUMNS),
        "sinks": sinks or PostgresTable(table="orders", columns=COLUMNS), **fields,
    }  # fmt: skip
    return Pipeline(**declared)


def test_rows_come_from_records_and_bad_records_lie_in_the_quarantine_with_their_reason(run_epoch: EpochRunner) -> None:
    """Values are JSON, text or bytes, and a record has its key, headers, time and place."""
    pipeline = orders(bad_records="quarantine")
    bad = Record(value="no order", key=b"k", headers=[("trace", "7")], partition=2)

    epoch = run_epoch(pipeline, [ADA, '{"id": 2, "customer": "grace", "amount": 30}', bad])

    assert epoch.rows("orders") == ROWS
    (kept,) = epoch.quarantine
    assert (kept["partition"], kept["offset"], kept["key"], kept["value"]) == (2, 0, b"k", b"no order")
    assert kept["reason"] == "not JSON: Expecting value at character 0"
    assert kept["headers"] == [["trace", "Nw=="]]
    assert (epoch.counts.read, epoch.counts.passed, epoch.skipped) == (3, 2, 0)
    assert [row["_offset"] for row in epoch.rows("orders", lineage=True)] == [0, 1]


def test_what_postgres_refuses_is_set_aside_as_in_production(run_epoch: EpochRunner) -> None:
    run_epoch.sql("CREATE TABLE orders (id bigint, customer text CHECK (customer <> ''), amount numeric(12,2))")
    pipeline = orders(PostgresTable(table="orders", lineage=False), bad_records="quarantine")

    epoch = run_epoch(pipeline, [ADA, {**GRACE, "customer": ""}])

    assert epoch.rows("orders") == ROWS[:1]
    assert [record["offset"] for record in epoch.quarantine] == [1]


def test_epochs_go_on_where_the_one_before_ended(run_epoch: EpochRunner) -> None:
    """An upsert keeps the newest row, sums grow, a tombstone deletes; an earlier result stays as it was."""
    summed = {"customer": "text", "amount": "numeric(12,2)"}
    pipeline = orders(
        PostgresTable(table="customers", mode="upsert", key="customer", columns=COLUMNS),
        PostgresTable(table="money", mode="add", key="customer", measures="amount", columns=summed),
    )
    gone = Record(value=None, key={"customer": "ada"})

    first = run_epoch(pipeline, [Record(value=ADA, key={"customer": "ada"}), GRACE])
    second = run_epoch(pipeline, [{**GRACE, "id": 3}])
    nothing = run_epoch(pipeline)

    assert first.rows("customers") == ROWS
    assert [row["id"] for row in second.rows("customers")] == [1, 3]
    assert [row["amount"] for row in second.rows("money")] == [Decimal("12.50"), Decimal(60)]
    assert (first.epoch_id, second.epoch_id, nothing.epoch_id) == (1, 2, None)
    assert nothing.rows("money") == second.rows("money")
    only = pipeline.model_copy(update={"sinks": pipeline.targets[:1]})
    assert [row["id"] for row in run_epoch(only, [gone]).rows("customers")] == [3]


def test_a_failed_epoch_raises_the_products_error_and_is_read_again(run_epoch: EpochRunner) -> None:
    with pytest.raises(BadRecordError, match=r"orders-0 offset 1: not JSON"):
        run_epoch(orders(), [ADA, b"no order"])

    epoch = run_epoch(orders(bad_records="quarantine"))

    assert epoch.rows("orders") == ROWS[:1]
    assert [record["value"] for record in epoch.quarantine] == [b"no order"]


def test_a_target_that_does_not_fit_is_refused_with_the_products_message(run_epoch: EpochRunner) -> None:
    run_epoch.sql("CREATE TABLE orders (id text)")

    with pytest.raises(TargetError, match="orders"):
        run_epoch(orders(), [ADA])


def test_what_would_be_published_is_given_by_topic_and_can_be_the_next_pipelines_input(run_epoch: EpochRunner) -> None:
    value = Json(columns={"id": "bigint"})
    topic = KafkaTopic(topic="amounts", key="customer", value=value, columns={"customer": "text"})
    sink = PostgresTable(table="ids", columns={"id": "bigint"})
    ids = Pipeline(name="ids", source=KafkaSource(pattern="amo.*"), parse=value, sinks=sink)

    first = run_epoch(orders(topic), [ADA, GRACE])
    second = run_epoch(orders(topic), [{**ADA, "id": 3}])

    assert [(record.key, record.value) for record in first.topics["amounts"]] == [
        (b"ada", b'{"id":1}'), (b"grace", b'{"id":2}'),
    ]  # fmt: skip
    assert [record.value for record in second.topics["amounts"]] == [b'{"id":3}']
    assert run_epoch(ids, first.topics["amounts"]).rows("ids") == [{"id": 1}, {"id": 2}]


def test_a_limit_leaves_the_rest_to_the_next_epoch(run_epoch: EpochRunner) -> None:
    pipeline = orders(source=KafkaSource(topics="orders", records_per_epoch=1))

    assert [len(run_epoch(pipeline, given).rows("orders")) for given in ([ADA, GRACE], [])] == [1, 2]


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        Record(value=ADA, timestamp=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("pipeline", "records", "said"),
    [
        (orders(Files(path="/srv/orders", columns=COLUMNS)), [ADA], "files:/srv/orders would be written outside"),
        (orders(source=KafkaSource(topics=("a", "b"))), [ADA], "names no topic, and the pipeline reads a, b"),
        (orders(), [Record(value=ADA, topic="other")], "names the topic other, and the pipeline reads orders"),
    ],
    ids=["files", "no topic", "another topic"],
)
def test_what_a_test_cannot_do_is_refused_by_name(
    run_epoch: EpochRunner, pipeline: Pipeline, records: list[object], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run_epoch(pipeline, records)


def test_a_custom_source_is_not_asked(run_epoch: EpochRunner) -> None:
    lines = CustomSource(source="epochline.sources.counter:Counter", label="lines", positions="sparse")
    sink = PostgresTable(table="lines", columns={"value": "text"})
    pipeline = Pipeline(name="lines", source=lines, parse=Text(), sinks=sink)

    assert run_epoch(pipeline, ["one", "two"]).rows("lines") == [{"value": "one"}, {"value": "two"}]


USERS = """
import json
import shutil
import sys
import pytest
from epochline import Json, KafkaSource, Pipeline, PostgresTable, Settings

ORDERS = Pipeline(
    name="orders", source=KafkaSource(topics="orders"), parse=Json(columns={"id": "bigint"}),
    sinks=PostgresTable(table="orders", columns={"id": "bigint"}), bad_records="quarantine",
)

def test_an_order(run_epoch):
    assert shutil.which("java") is None
    epoch = run_epoch(ORDERS, [{"id": 1}, b"no order"])
    assert epoch.rows("orders") == [{"id": 1}]
    assert [record["value"] for record in epoch.quarantine] == [b"no order"]

def test_a_wrong_expectation(run_epoch):
    assert run_epoch(ORDERS, [{"id": 1}]).rows("orders") == [{"id": 2}]

def test_a_transform(run_epoch):
    sink = ORDERS.targets[0].model_copy(update={"aggregated": True})
    run_epoch(ORDERS.model_copy(update={"transform": "json:dumps", "sinks": (sink,)}), [{"id": 1}])
"""
OTHERS = """
import sys

def test_nothing_heavy_was_imported():
    heavy = {"airflow", "confluent_kafka", "numpy", "psycopg2", "pyarrow", "pydantic", "pyspark", "sqlalchemy"}
    assert heavy & {*sys.modules} == set()
"""


def pytest_of_a_user(folder: Path, *arguments: str, **variables: str) -> str:
    """What a user's pytest says, which finds the fixture by the entry point alone; no program is on its path."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments], cwd=folder, text=True,
        env={"HOME": str(folder), "PATH": "", "PYTHONPYCACHEPREFIX": str(folder / "cache"), **variables},
        capture_output=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_users_tests_run_without_java_and_kafka_and_leave_no_database(
    stack: Stack, login: Login, tmp_path: Path
) -> None:
    """With a login that may create databases and nothing else."""
    (tmp_path / "test_orders.py").write_text(USERS)
    server = stack.postgres.superuser_dsn
    before = query(server, "SELECT datname FROM pg_database ORDER BY datname")

    said = pytest_of_a_user(tmp_path, EPOCHLINE_TEST_POSTGRES=login(attributes="CREATEDB"))

    assert "2 failed, 1 passed" in said, said
    assert "assert [{'id': 1}] == [{'id': 2}]" in said
    assert "a pipeline with a transform or windows needs Spark, and no Java was found" in said
    assert query(server, "SELECT datname FROM pg_database ORDER BY datname") == before


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it_and_one_that_a_file_hides_is_not(
    stack: Stack, tmp_path: Path
) -> None:
    (tmp_path / "test_orders.py").write_text(USERS)
    (tmp_path / "conftest.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    arguments = (tmp_path, "-k", "an_order")

    missing = pytest_of_a_user(*arguments, EPOCHLINE_TEST_POSTGRES=stack.postgres.superuser_dsn)
    (tmp_path / "conftest.py").write_text("import pyspark\n")
    (tmp_path / "pyspark.py").touch()
    hidden = pytest_of_a_user(*arguments, EPOCHLINE_TEST_POSTGRES=stack.postgres.superuser_dsn)

    said = "pyspark is not installed here. It belongs to the extra 'spark': run `make setup`."
    assert said in missing, missing
    assert "'pyspark' is not a package" in hidden, hidden
    assert "It belongs to the extra" not in hidden


def test_tests_that_do_not_use_the_fixture_pay_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_others.py").write_text(OTHERS)

    said = pytest_of_a_user(tmp_path)

    assert "1 passed" in said, said
    assert "epochline_postgres" in pytest_of_a_user(tmp_path, "--fixtures")


def test_a_server_that_cannot_be_used_is_named_without_its_password(login: Login, tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(USERS)
    servers = {
        "postgresql://nobody:secret@127.0.0.1:1/none": "the server of tests cannot be reached",
        "secret": "the server of tests is no URL",
        login(): "Tests make databases of their own; run ALTER ROLE … CREATEDB",
    }
    for server, why in servers.items():
        said = pytest_of_a_user(tmp_path, "-k", "an_order", "--tb=short", EPOCHLINE_TEST_POSTGRES=server)

        assert why in said
        assert "1 error" in said
        assert "secret" not in said
