"""How long the pages in Airflow take to make after a thousand, a hundred thousand and a million epochs.

The time is that of the ledger's answers and of the HTML, which is sent when it is whole: the first byte waits for both.
Airflow's own check of the user is left out. Every round makes every page at every length of the history.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

from bench.epochs import rounds_of
from bench.report import measured_table, ratio, run
from bench.servers import servers
from epochline.airflow.pages.rendering import page
from epochline.airflow.pages.views import HistoryFilter, epoch_view, pipeline_view, pipelines_view
from epochline.airflow.reading import snapshot
from tests.databases import as_admin, query

EPOCHS = (1_000, 100_000, 1_000_000)
ROUNDS = 20
_NAME = "orders"
_UNCHECKED = "-c session_replication_role=replica"
"""Constraints of the ledger are not checked while epochs are made: a million of them would take minutes."""

_FIRST = """
    INSERT INTO epochline.pipeline (pipeline, last_epoch_id) VALUES ('orders', 1);
    INSERT INTO epochline.declaration (hash, pipeline, body) VALUES ('x', 'orders', '{}');
    INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, attempt, dag_id, run_id, host, declaration_hash,
        lease_until, aborted_at, aborts, error)
    VALUES ('orders', 1, 1, 'ABORTED', 1, 'orders', 'run-1', 'host', 'x', now(), now(), 1, 'why');
    INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, until_offset, chosen_by)
    SELECT 'orders', 1, 'orders', 'x', n, 0, 'earliest' FROM generate_series(0, 3) n;
    INSERT INTO epochline.log_end (pipeline, topic, topic_id, partition, log_start, last_stable, cleanup_policy,
        retention_ms, retention_bytes)
    SELECT 'orders', 'orders', 'x', n, 0, 2000000, 'delete', 604800000, -1 FROM generate_series(0, 3) n
"""
Times = Mapping[tuple[str, int], list[float]]


def fill(dsn: str, count: int, options: str = "") -> None:
    """Add committed epochs 2 to ``count`` to a ledger with one pipeline that has epoch 1 and its origins.

    Each reads one record of each partition. They were planned a minute apart, the last one now.
    """
    statements = f"""
    INSERT INTO epochline.epoch (pipeline, epoch_id, generation, state, attempt, dag_id, run_id, host,
        declaration_hash, lease_until, planned_at, pre_committed_at, committed_at, records_read, records_passed,
        records_skipped, records_quarantined, rows_written)
    SELECT pipeline, n, 1, 'COMMITTED', 1, dag_id, 'run-' || n, host, declaration_hash, now(), t, t,
        t + interval '5 s', 2, 2, 0, 0, 2
    FROM epochline.epoch, generate_series(2, {count}) n, LATERAL (SELECT now() - ({count} - n) * interval '1 min') x (t)
    WHERE epoch_id = 1;
    INSERT INTO epochline.planned_range (pipeline, epoch_id, topic, topic_id, partition, start_offset, until_offset,
        last_stable)
    SELECT pipeline, n, topic, topic_id, partition, next_offset + n - 2, next_offset + n - 1, next_offset + n + n % 9
    FROM epochline.heads, generate_series(2, {count}) n;
    INSERT INTO epochline.committed_range (pipeline, generation, topic, topic_id, partition, start_offset, until_offset,
        epoch_id, chosen_by)
    SELECT pipeline, 1, topic, topic_id, partition, start_offset, until_offset, epoch_id, 'epoch'
    FROM epochline.planned_range WHERE epoch_id > 1 ORDER BY epoch_id;
    INSERT INTO epochline.attempt (pipeline, epoch_id, attempt, dag_id, run_id, host, started_at, job_ended_at,
        sealed_at, ended_at)
    SELECT pipeline, epoch_id, 1, dag_id, run_id, host, planned_at, planned_at, planned_at, planned_at
    FROM epochline.epoch WHERE epoch_id > 1;
    INSERT INTO epochline.receipt (pipeline, epoch_id, sink, attempt_id, rows, shown_at)
    SELECT pipeline, epoch_id, 'orders', attempt_id, 2, ended_at FROM epochline.attempt WHERE epoch_id > 1;
    ANALYZE epochline.epoch, epochline.planned_range, epochline.committed_range, epochline.attempt, epochline.receipt
    """  # noqa: S608 - a number
    query(dsn, statements, options=options)


def pages(dsn: str, epochs: int) -> dict[str, Callable[[], object]]:
    """What makes each page."""

    def of_pipeline(**chosen: object) -> object:
        filtered = HistoryFilter.model_validate(chosen)
        with snapshot(dsn) as ledger:
            view = pipeline_view(ledger, _NAME, filtered)
        return page("pipeline.html", f"/pipelines/{_NAME}", view=view, chosen=filtered)

    def of_all() -> object:
        with snapshot(dsn) as ledger:
            view = pipelines_view(ledger, set)
        return page("pipelines.html", "/", view=view)

    def of_epoch() -> object:
        with snapshot(dsn) as ledger:
            view = epoch_view(ledger, _NAME, epochs // 2)
        return page("epoch.html", f"/pipelines/{_NAME}/epochs/{epochs // 2}", view=view)

    return {
        "all pipelines": of_all,
        "one pipeline": of_pipeline,
        "one pipeline, the middle of its history": lambda: of_pipeline(before=epochs // 2),
        "one pipeline, its aborted epochs": lambda: of_pipeline(state="ABORTED"),
        "one epoch": of_epoch,
    }


def measured(lengths: Sequence[int], rounds: int) -> Times:
    """Seconds of each page at each length of the history, after one round that is not counted."""
    with servers("postgres") as stack:
        contestants: dict[tuple[str, int], Callable[[], object]] = {}
        for length in lengths:
            name = f"pages_{length}"
            as_admin(stack.postgres.superuser_dsn, f"CREATE DATABASE {name} OWNER epochline TEMPLATE epochline")
            whole = stack.postgres.dsn(name, login="postgres")
            query(whole, _FIRST)
            fill(whole, length, _UNCHECKED)
            as_admin(whole, "VACUUM ANALYZE")
            contestants |= {(of, length): make for of, make in pages(stack.postgres.dsn(name), length).items()}
            print(f"{length:,} epochs are there", flush=True)
        return rounds_of(contestants, rounds)


def section(rounds: int) -> str:
    """Measure, and render the table, as ratios to the shortest history."""
    times, shortest, longest = measured(EPOCHS, rounds), EPOCHS[0], EPOCHS[-1]
    rows = [
        [
            name, f"{ratio(times[name, longest], times[name, shortest]):.2f}",
            *(
                f"{1000 * statistics.median(times[name, length]):.0f}, {1000 * max(times[name, length]):.0f}"
                for length in EPOCHS
            ),
        ]
        for name in dict.fromkeys(name for name, _ in times)
    ]  # fmt: skip
    headings = [
        "page", f"first byte after {longest:,} epochs, ratio to {shortest:,}",
        *(f"{length:,} epochs, ms: median, most" for length in EPOCHS),
    ]  # fmt: skip
    intro = f"Four partitions, one sink, an epoch a minute; {rounds} rounds."
    return measured_table("bench.pages", intro, headings, rows)


if __name__ == "__main__":
    run("bench.pages", __doc__, section, rounds=(ROUNDS, "times each page is made"))
