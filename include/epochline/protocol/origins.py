"""Computes where a pipeline begins in a partition that it has never read. Pure."""

from collections.abc import Mapping, Sequence

from epochline.declare.source import FromGroup, FromOffsets, FromTimestamp, Startup
from epochline.errors import SourceError, SourceUnavailableError
from epochline.protocol.offsets import Head, Origin, TopicPartition
from epochline.protocol.planning import PartitionView

_NOWHERE: Mapping[TopicPartition, int | None] = {}


def missing_origins(
    heads: Sequence[Head],
    partitions: Sequence[PartitionView],
    *,
    startup: Startup,
    by_pattern: bool,
    found: Mapping[TopicPartition, int | None] = _NOWHERE,
) -> list[Origin]:
    """Compute the origins of partitions without a head; a head is kept in every startup mode.

    ``found`` has Kafka's offsets of the partitions of `begun_by_startup`, for `FromGroup` and `FromTimestamp`. Raises
    `SourceError` if the mode gives no offset inside the log, `SourceUnavailableError` if ``latest`` is not known yet.
    """
    ruled = {view.tp for view in begun_by_startup(heads, partitions, by_pattern=by_pattern)}
    begun = {head.tp for head in heads}
    known_topics = {head.tp.topic for head in heads}
    origins = []
    for view in partitions:
        if view.tp in begun:
            continue
        if view.tp in ruled:
            offset, chosen_by = _resolve(startup, view, found.get(view.tp))
        else:
            # All its records were produced after the pipeline's start.
            offset = 0
            chosen_by = "new partition" if view.tp.topic in known_topics else "new topic of the pattern"
        origins.append(Origin(tp=view.tp, offset=offset, chosen_by=chosen_by, leader_epoch=view.leader_epoch))
    return origins


def begun_by_startup(
    heads: Sequence[Head], partitions: Sequence[PartitionView], *, by_pattern: bool
) -> list[PartitionView]:
    """The partitions that begin by the startup mode, those of newly declared topics; others begin at offset 0."""
    if by_pattern and heads:
        return []
    known_topics = {head.tp.topic for head in heads}
    return [view for view in partitions if view.tp.topic not in known_topics]


def _resolve(startup: Startup, view: PartitionView, offset: int | None) -> tuple[int, str]:
    match startup:
        case FromGroup():
            return _group_offset(startup, view, offset)
        case FromTimestamp():
            if offset is None:
                return view.last_stable, f"startup {startup}: no record that late"
            return offset, f"startup {startup}"
        case FromOffsets():
            return _given_offset(startup, view), "startup offset"
        case "latest":
            if view.last_stable < view.high_watermark and view.waits_for is not None:
                raise SourceUnavailableError(
                    f"{view.tp} has no latest position yet: {view.waits_for}. Nothing was planned. A retry helps when"
                    " that has ended."
                )
            return view.last_stable, "startup latest"
        case _:
            return view.log_start, "startup earliest"


def _group_offset(startup: FromGroup, view: PartitionView, held: int | None) -> tuple[int, str]:
    if held is not None and _inside(view, held):
        return held, f"startup {startup} offset {held}"
    why = "no offset" if held is None else f"offset {held}, outside the log"
    if startup.reset == "fail":
        raise SourceError(
            f"consumer group {startup.group} holds {why}, for {view.tp}, whose log is {_log(view)}. Nothing was"
            " planned. Correct the group's id, or declare reset='earliest' or reset='latest'."
        )
    return (
        view.log_start if startup.reset == "earliest" else view.last_stable,
        f"startup {startup} reset {startup.reset}: {why}",
    )


def _given_offset(startup: FromOffsets, view: PartitionView) -> int:
    # Several sources prefix their topics with a name and a slash, which no topic of Kafka holds.
    offset = startup.offsets.get(view.tp.topic.rpartition("/")[2], {}).get(view.tp.partition)
    if offset is None:
        raise SourceError(
            f"startup=FromOffsets(…) names no offset for {view.tp}, whose log is {_log(view)}. Nothing was planned."
            " Name an offset for each partition."
        )
    if not _inside(view, offset):
        raise SourceError(
            f"startup=FromOffsets(…) names offset {offset} for {view.tp}, whose log is {_log(view)}. Nothing was"
            " planned. Name an offset inside the log; its end means the next record."
        )
    return offset


def _inside(view: PartitionView, offset: int) -> bool:
    return view.log_start <= offset <= view.high_watermark


def _log(view: PartitionView) -> str:
    return f"[{view.log_start}, {view.high_watermark}]"
