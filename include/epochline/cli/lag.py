"""`epochline lag`: the lag of each partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from epochline.cli import printing
from epochline.errors import DataLossError, EpochlineError

if TYPE_CHECKING:
    from epochline.cli.database import Session
    from epochline.declare.pipeline import Pipeline
    from epochline.ports import OffsetSource
    from epochline.protocol.offsets import Head
    from epochline.protocol.planning import PartitionView

T = TypeVar("T")

TOO_FAR_BEHIND = 3
GOES_ON = "goes on"
"""The state of a pipeline that may plan epochs. Every other state means that it stands."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("lag")(lag)


def lag(
    pipeline: Annotated[str | None, typer.Argument(help="One pipeline; all declared ones if not given.")] = None,
    fail_above: Annotated[
        int | None, typer.Option(min=0, help="Exit with 3 if a pipeline lags by more records than this, or stands.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the lag of each partition: head, end of the log, records between them, and time since the last commit.

    The end is the last stable offset: a run can read up to there now. The state says why a pipeline stands: it is
    paused, stopped (it paused itself) or dropped, or its log is not the one that was read: its topic was made again,
    its end is before the head, unread records were deleted, or another partition has such a fault. Exit code 0:
    success; 1: a declaration is broken, or Kafka or the ledger of a pipeline cannot be reached, and the other pipelines
    are shown; 2: there is no such pipeline; 3: with --fail-above, a pipeline is further behind, or stands.
    """
    from epochline.config import discovery

    found = (
        discovery.look()
        if pipeline is None
        else discovery.Declared(pipelines={pipeline: discovery.find(pipeline)}, broken=())
    )
    declared = found.pipelines
    rows, errors = [], {}
    with ExitStack() as block:
        servers = _Servers(block)
        for name, one in declared.items():
            try:
                rows += servers.lag_of(one)
            except EpochlineError as error:
                if pipeline is not None:
                    raise
                errors[name] = error
    if as_json:
        printing.say(printing.as_json(rows))
    else:
        printing.table(
            ("pipeline", "topic", "partition", "head", "end", "lag", "last commit", "state"),
            [
                (
                    row["pipeline"],
                    row["topic"],
                    row["partition"],
                    row["head"],
                    row["end"],
                    row["lag"],
                    _ago(row["seconds_since_commit"]),
                    row["state"],
                )
                for row in rows
            ],
        )
    asked = [name for name in declared if name not in errors]
    behind = {name: sum(row["lag"] for row in rows if row["pipeline"] == name) for name in asked}
    standing = {row["pipeline"]: row["reason"] for row in rows if row["reason"]}
    if not as_json:
        for name, records in behind.items():
            how_far = f"{records} records behind" if records else "caught up"
            printing.say(f"{name}: stands. {standing[name]}" if name in standing else f"{name}: {how_far}")
    for name, reason in errors.items():
        printing.progress(f"{name}: cannot be asked: {reason}")
    printing.broken(found.broken)
    if errors or found.broken:
        raise typer.Exit(1)
    if fail_above is not None and (standing or any(records > fail_above for records in behind.values())):
        raise typer.Exit(TOO_FAR_BEHIND)


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{printing.duration(seconds)} ago"


def lag_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    """One row per partition. The head of a partition that the ledger does not know yet is where it would begin.

    ``state`` is `GOES_ON`, or says why the pipeline stands; ``reason`` then says more, and what to do.
    """
    with ExitStack() as block:
        return _Servers(block).lag_of(pipeline)


class _Servers:
    """The databases and Kafkas of all pipelines. Each is opened once, when first needed, and kept until the block ends.

    A server that cannot be reached is tried once, so that only one pipeline waits for it. Each pipeline that needs the
    server gets the same error.
    """

    def __init__(self, block: ExitStack) -> None:
        self._block = block
        self._databases: dict[str, Session | EpochlineError] = {}
        self._kafkas: dict[str, OffsetSource | EpochlineError] = {}

    def lag_of(self, pipeline: Pipeline) -> list[dict[str, Any]]:
        """One row per partition."""
        from epochline.cli import connections, database

        ledger = self._kept(
            self._databases, pipeline.postgres_connection, lambda one: database.session(connections.postgres_dsn(one))
        )
        heads = database.ask(ledger, "heads_with_ages", pipeline=pipeline.name)
        decided = database.ask(ledger, "pipeline_status", pipeline=pipeline.name)
        source = self._kept(self._kafkas, pipeline.source.connection, connections.opened_offsets)
        rows = _lag(pipeline, heads, source)
        state, reason = _decided(pipeline.name, decided)
        return [row | {"state": state, "reason": reason} for row in rows] if reason else rows

    def _kept(
        self, known: dict[str, T | EpochlineError], connection: str, opened: Callable[[str], AbstractContextManager[T]]
    ) -> T:
        if connection not in known:
            try:
                known[connection] = self._block.enter_context(opened(connection))
            except EpochlineError as error:
                known[connection] = error
        found = known[connection]
        if isinstance(found, EpochlineError):
            raise found
        return found


def _lag(pipeline: Pipeline, heads: Sequence[Mapping[str, Any]], source: OffsetSource) -> list[dict[str, Any]]:
    from epochline.coordinator import observe_startup, origins_of
    from epochline.coordinator.checks import is_read
    from epochline.protocol.offsets import Head, TopicPartition

    known = [
        Head(
            tp=TopicPartition(topic=row["topic"], partition=row["partition"], topic_id=row["topic_id"]),
            origin=row["origin_offset"],
            next_offset=row["next_offset"],
        )
        for row in heads
    ]
    view = source.look(pipeline.source)
    lost = _lost(pipeline.name, [head for head in known if is_read(pipeline, head, view)], view.partitions)
    # Where new partitions begin is not known before an operator has settled the loss.
    begun = [] if lost else origins_of(pipeline, known, view, observe_startup(source, pipeline, known, view))
    origins = {(one.tp.topic, one.tp.partition): one.offset for one in begun}
    by_partition = {(row["topic"], row["partition"]): row for row in heads}
    rows = []
    for one in sorted(view.partitions, key=lambda each: each.tp):
        head = by_partition.get((one.tp.topic, one.tp.partition))
        at = head["next_offset"] if head else origins.get((one.tp.topic, one.tp.partition), one.log_start)
        committed = head is not None and head["epoch_id"] is not None
        rows.append(
            {
                "pipeline": pipeline.name,
                "topic": one.tp.topic,
                "partition": one.tp.partition,
                "head": at,
                "end": one.last_stable,
                "lag": max(0, one.last_stable - at),
                "seconds_since_commit": head["seconds"] if head and committed else None,
                "state": GOES_ON if lost is None else _fault(head, one),
                "reason": lost,
            }
        )
    return rows


def _decided(pipeline: str, standing: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """The state that an operator, or the pipeline itself, decided on, and the reason."""
    for row in standing:
        if row["dropped_at"]:
            return "dropped", f"Dropped by {row['dropped_by']}: {row['dropped_reason']}. Its history stays."
        if row["paused_at"]:
            state = "stopped" if row["paused_by"] == "epochline" else "paused"
            said = f"{state.capitalize()} by {row['paused_by']}: {row['paused_reason'].rstrip('.')}."
            return state, f"{said} To go on, run `epochline resume {pipeline} --reason …`"
    return GOES_ON, None


def _lost(pipeline: str, heads: Sequence[Head], partitions: Sequence[PartitionView]) -> str | None:
    from epochline.protocol.data_loss import check_same_log

    try:
        check_same_log(pipeline, heads, partitions)
    except DataLossError as error:
        return str(error).removeprefix(f"{pipeline}: ")
    return None


def _fault(head: Mapping[str, Any] | None, partition: PartitionView) -> str:
    """What is wrong with this partition of a pipeline that stands because of its log."""
    if head is not None:
        if head["topic_id"] != partition.tp.topic_id:
            return "topic made again"
        if head["next_offset"] > partition.high_watermark:
            return "head beyond end"
        if head["next_offset"] < partition.log_start:
            return "unread records deleted"
    return "stands"
