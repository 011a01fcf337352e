"""Where pipelines stand: their partitions by Kafka and the ledger, and whether they go on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from epochline.cli import connections, database
from epochline.cli.database import Row, Session
from epochline.cli.faults import Fault, FaultWord, kafka_fault, ledger_fault, log_fault
from epochline.coordinator import observe_startup, origins_of
from epochline.coordinator.checks import open_transactions
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError, PipelineStandsError, TopicMissingError
from epochline.ports import OffsetSource
from epochline.protocol.offsets import Head, TopicPartition
from epochline.protocol.planning import PartitionView, SourceView
from epochline.protocol.standing import StandingWord, standing_of_pipeline

T = TypeVar("T")
Place = tuple[str | None, int | None]
"""A topic and a partition; no partition of a topic that Kafka never had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a pipeline stands.

    ``stands`` says whether it stays so until a person acts. ``since`` is None where nothing recorded it. ``reason``
    says more where it does, or where a warning is due, and ends with the command that goes on if there is one.
    ``partitions`` has one row per partition.
    """

    state: StandingWord | FaultWord
    stands: bool
    since: datetime | None
    reason: str | None
    partitions: Sequence[Row]


_SHOWN = 3
"""Most partitions that are named as held back."""

_DECIDED = frozenset(
    {
        StandingWord.DROPPED, StandingWord.STOPPED, StandingWord.PAUSED, StandingWord.AWAITING_APPROVAL,
        StandingWord.LEFT_PLANNED,
    }
)  # fmt: skip
"""States that say more than what Kafka shows. What a failed plan said, Kafka shows as it is now."""

UNKNOWN: Row = {
    "paused_at": None, "paused_command": None, "dropped_at": None, "last_epoch_id": 0, "cluster_id": None,
    "epoch_id": None, "state": None, "attempt": None, "planned_at": None, "lease_expired": None, "approval": None,
    "committed_epoch": None, "committed_at": None, "committed_read": None, "committed_quarantined": None,
    "quarantining_above": 0.0, "interval_seconds": None, "failures": 0, "aborts": 0, "due": None,
    "plan_error": None, "plan_failing_since": None,
    "lag": None, "endless": None, "last_plan_at": None, "seconds_since_plan": None,
}  # fmt: skip
"""The row of a pipeline that the ledger does not know."""


def overview_of(pipeline: Pipeline, ledger: Session) -> Row:
    """The pipeline's row of the view ``epochline.standings``, with its lag when Kafka was last asked."""
    rows = database.ask(ledger, "standing", pipeline=pipeline.name)
    return rows[0] if rows else {**UNKNOWN, "pipeline": pipeline.name}


def decided(row: Row, partitions: Sequence[Row] = ()) -> Standing:
    """The state by the ledger alone."""
    standing = standing_of_pipeline(row)
    word = standing.word
    reason = str(standing) if word.stands or standing.tone == "warning" else None
    return Standing(
        state=word, stands=word.stands, since=standing.since, reason=reason,
        partitions=[{**partition, "state": word, "reason": reason} for partition in partitions],
    )  # fmt: skip


def standing_of(pipeline: Pipeline, row: Row, ledger: Session, source: OffsetSource) -> Standing:
    """Compare the ledger with Kafka, as the next plan would.

    ``row`` is the answer of `overview_of`.

    Raises:
        SourceUnavailableError, SourceError: Kafka does not answer, or refuses.
        LedgerUnavailableError, LedgerError: the ledger cannot be read.
    """
    rows = database.ask(ledger, "heads_with_ages", pipeline=pipeline.name)
    view, missing = _look(pipeline, source)
    heads = [_head(committed) for committed in rows]
    read = [head for head in heads if pipeline.source.keeps(head.tp.topic)]
    lost = log_fault(pipeline, row, read, view, source)
    fault = (
        kafka_fault(pipeline, ledger, source, lost)
        or lost
        or _never_there(pipeline.name, missing)
        or ledger_fault(pipeline, row, ledger, source)
    )
    # Where new partitions begin is not known before an operator has settled a loss.
    begun = [] if lost else origins_of(pipeline, heads, view, observe_startup(source, pipeline, heads, view))
    origins: dict[Place, int] = {(origin.tp.topic, origin.tp.partition): origin.offset for origin in begun}
    views = () if lost is not None and lost.word == FaultWord.OTHER_CLUSTER else view.partitions
    partitions = _partitions(pipeline, rows, read, views, origins, missing.topics if missing else ())
    lag = None if row["lag"] is None else sum(partition["lag"] or 0 for partition in partitions)
    standing = decided({**row, "lag": lag}, partitions)
    if standing.reason is None and (held := held_back(view)) is not None:
        rows = [{**partition, "reason": held} for partition in standing.partitions]
        standing = replace(standing, reason=held, partitions=rows)
    if fault is None or standing.state in _DECIDED:
        return standing
    state = next(iter(fault.at.values()), fault.word)
    others = FaultWord.STANDS if fault.at else state
    words = [fault.at.get((partition["topic"], partition["partition"]), others) for partition in partitions]
    return Standing(
        state=state, stands=True, since=row["plan_failing_since"], reason=fault.reason,
        partitions=[
            {**partition, "state": word, "reason": fault.reason}
            for partition, word in zip(partitions, words, strict=True)
        ],
    )  # fmt: skip


def held_back(view: SourceView) -> str | None:
    """What a plan notes of open transactions that hold records back, of the first partitions; None without one."""
    notes = open_transactions(view)
    more = f"; and {len(notes) - _SHOWN} partitions more" if len(notes) > _SHOWN else ""
    return "; ".join(notes[:_SHOWN]) + more or None


def _partitions(
    pipeline: Pipeline,
    heads: Sequence[Row],
    read: Sequence[Head],
    views: Sequence[PartitionView],
    origins: Mapping[Place, int],
    missing: Iterable[str],
) -> list[Row]:
    """The partitions that Kafka has, those that it no longer has, and the declared topics of which nothing is known."""
    committed: dict[Place, Row] = {(row["topic"], row["partition"]): row for row in heads}
    present: dict[Place, PartitionView] = {(view.tp.topic, view.tp.partition): view for view in views}
    gone = {(head.tp.topic, head.tp.partition) for head in read} - present.keys()
    never = set(missing) - {topic for topic, _ in gone}
    places: list[Place] = [*sorted(present), *sorted(gone), *((topic, None) for topic in sorted(never))]
    return [
        {"pipeline": pipeline.name, **_row(place, committed.get(place), present.get(place), origins.get(place))}
        for place in places or [(None, None)]
    ]


def _row(place: Place, head: Row | None, view: PartitionView | None, origin: int | None) -> Row:
    """A partition. One without a head begins at its origin, or else at its log's start."""
    begins = origin if origin is not None or view is None else view.log_start
    at = begins if head is None else head["next_offset"]
    topic, partition = place
    return {
        "topic": topic,
        "partition": partition,
        "head": at,
        "end": view.known_end if view else None,
        "lag": max(0, view.known_end - at) if view and at is not None else None,
        "seconds_since_commit": head["seconds"] if head and head["epoch_id"] is not None else None,
    }


def _look(pipeline: Pipeline, source: OffsetSource) -> tuple[SourceView, TopicMissingError | None]:
    """What Kafka has of the declared topics, and the error that names those that it does not have."""
    try:
        return source.look(pipeline.source), None
    except TopicMissingError as error:
        rest = pipeline.source.without(error.topics)
        view = SourceView(cluster_id=error.cluster_id, partitions=()) if rest is None else source.look(rest)
        return view, error


def _head(row: Row) -> Head:
    return Head(
        tp=TopicPartition(topic=row["topic"], partition=row["partition"], topic_id=row["topic_id"]),
        origin=row["origin_offset"],
        next_offset=row["next_offset"],
        epoch_id=row["epoch_id"],
        leader_epoch=row["leader_epoch"],
    )


def _never_there(pipeline: str, error: TopicMissingError | None) -> Fault | None:
    """Whether Kafka lacks a declared topic that was never read."""
    if error is None:
        return None
    stands = PipelineStandsError(f"{str(error).rstrip('.')}.", f"run {pipeline}")
    return Fault(word=FaultWord.TOPIC_MISSING, reason=str(stands))


class Servers:
    """The databases and Kafkas of all pipelines. Each is opened once, when first needed, and kept until the block ends.

    A server that cannot be reached is tried once, so that only one pipeline waits for it. Each pipeline that needs the
    server gets the same error.
    """

    def __init__(self, block: ExitStack) -> None:
        self._block = block
        self._databases: dict[str, Session | EpochlineError] = {}
        self._kafkas: dict[str, OffsetSource | EpochlineError] = {}

    def ledger(self, pipeline: Pipeline) -> Session:
        """A session with the pipeline's ledger.

        Raises:
            LedgerUnavailableError, LedgerError, ConfigurationError: it cannot be reached.
        """
        return self._kept(
            self._databases,
            pipeline.postgres_connection,
            lambda connection: database.session(connections.adapters().postgres_dsn(connection)),
        )

    def source(self, pipeline: Pipeline) -> OffsetSource:
        """The pipeline's Kafka, the source of the user's own that it declares, or several of them together.

        Raises:
            SourceError, ConfigurationError: one cannot be reached.
        """
        return connections.adapters().offsets(pipeline, self.kafka)

    def kafka(self, connection_id: str) -> OffsetSource:
        """The Kafka of a connection. Raises as `source`."""
        return self._kept(self._kafkas, connection_id, connections.adapters().kafka)

    def _kept(
        self, servers: dict[str, T | EpochlineError], connection: str, enter: Callable[[str], AbstractContextManager[T]]
    ) -> T:
        if connection not in servers:
            try:
                servers[connection] = self._block.enter_context(enter(connection))
            except EpochlineError as error:
                servers[connection] = error
        server = servers[connection]
        if isinstance(server, EpochlineError):
            raise server
        return server
