"""A backlog of ten million records is caught up by one command, in memory that does not depend on it (B1).

``EPOCHLINE_BACKLOG_RECORDS`` chooses another number. The second half takes a few minutes at any number, because the
target slows down there.
"""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from bench.processes import held, peaks
from tests.commands import in_processes
from tests.databases import query
from tests.integration.kafka_topics import make_topic, produce_orders
from tests.integration.published_queries import queries
from tests.waiting import wait_for

RECORDS = int(os.environ.get("EPOCHLINE_BACKLOG_RECORDS", "10_000_000"))
PARTITIONS = 4
MOST = RECORDS // 10
"""The declared limit of an epoch."""
TARGET_SECONDS = 10
SLOW_ROWS_PER_SECOND = MOST / (3 * TARGET_SECONDS)
"""What the target takes of the second half: an epoch of the declared limit would take three times its target."""
MOST_BYTES = 2**31
"""What the command may hold, with Spark's JVM, whose heap may have 1 GiB, and two Python workers."""

DECLARED = f"""
from epochline import Json, KafkaSource, Pipeline, PostgresTable, Settings, epoch_dag

COLUMNS = {{{{"id": "bigint", "customer": "text", "amount": "numeric(12,2)"}}}}
dag = epoch_dag(Pipeline(
    name="backlog", source=KafkaSource(topics="{{topic}}", records_per_epoch={MOST}), parse=Json(columns=COLUMNS),
    sinks=[PostgresTable(table="backlog", columns=COLUMNS)], settings=Settings(target_duration={TARGET_SECONDS}),
    spark_conf={{{{"spark.driver.memory": "1g"}}}},
))
"""
SLOW = f"""
CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep((SELECT count(*) FROM added WHERE id >= {RECORDS // 2}) / {SLOW_ROWS_PER_SECOND}::float8);
    RETURN NULL;
END $$;
CREATE TRIGGER slow AFTER INSERT ON public.backlog REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION public.slow();
"""


class Watch:
    """Watches the memory of the command that runs the pipeline, from its start to its end, in a thread of its own."""

    def __init__(self) -> None:
        self.most = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)

    def _watch(self) -> None:
        command = wait_for("the command runs", self._command)
        with peaks(lambda: {"held": held(command.pid)}) as most:
            command.wait()
        self.most = most["held"]

    @staticmethod
    def _command() -> psutil.Process | None:
        return next((one for one in psutil.Process().children() if {"run", "backlog"} <= set(one.cmdline())), None)


@pytest.mark.long
def test_a_backlog_is_caught_up_in_contiguous_epochs_that_follow_the_speed_of_the_sink(
    postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    """B1, G3, INV-1: no record is lost or doubled, no human helps, and a slow target gets smaller epochs."""
    make_topic(kafka_bootstrap, topic_name, PARTITIONS)
    produce_orders(kafka_bootstrap, topic_name, range(RECORDS), PARTITIONS)
    (tmp_path / "backlog.py").write_text(DECLARED.format(topic=topic_name))
    epochline = in_processes(tmp_path, postgres=postgres_dsn, kafka=kafka_bootstrap)
    epochline("migrate")
    query(postgres_dsn, SLOW)

    with Watch() as watch:
        epochline("run", "backlog", "--until-caught-up", "--master", "local[2]")

    found = query(postgres_dsn, "SELECT count(*), count(DISTINCT id), min(id), max(id), sum(amount) FROM backlog")
    amounts = sum(number % 100_000 for number in range(RECORDS)) + RECORDS / 4
    assert found == [(RECORDS, RECORDS, 0, RECORDS - 1, amounts)]
    assert query(postgres_dsn, queries()["is_the_chain_whole"]) == []
    ranges = query(
        postgres_dsn,
        "SELECT partition, epoch_id, start_offset, until_offset FROM epochline.offsets WHERE state = 'COMMITTED'"
        " ORDER BY partition, epoch_id",
    )
    for partition in range(PARTITIONS):
        own = [(start, until) for at, _epoch, start, until in ranges if at == partition]
        assert (own[0][0], own[-1][1]) == (0, RECORDS // PARTITIONS)
        assert all(before[1] == after[0] for before, after in pairwise(own))
    epochs = query(
        postgres_dsn,
        "SELECT e.epoch_id, e.attempt, p.records_read, e.record_limit, p.whole_seconds, p.longest_latency_seconds,"
        " min(o.start_offset) FROM epochline.epochs e JOIN epochline.phases p USING (pipeline, epoch_id)"
        " JOIN epochline.offsets o USING (pipeline, epoch_id)"
        " GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1",
    )
    for epoch, _attempt, read, limit, seconds, latency, start in epochs:
        print(f"epoch {epoch} from {start}: {read} of {limit} records in {seconds:.1f} s, {latency:.0f} s old")
    print(f"the command held {watch.most / 2**20:.0f} MiB")
    assert {attempt for _, attempt, *_ in epochs} == {1}
    slow = [limit for _, _, _, limit, _, _, start in epochs if start >= RECORDS // 2 // PARTITIONS]
    # The trigger makes such an epoch last at least as long as its rows take: by arithmetic, however fast the machine is.
    assert max(slow[1:]) <= SLOW_ROWS_PER_SECOND * TARGET_SECONDS < max(limit for *_, limit, _, _, _ in epochs)
    assert 0 < watch.most < MOST_BYTES
