"""Several sources of one pipeline, asked as one `epochline.ports.OffsetSource`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from epochline.declare.inputs import DeclaredSource, Sources
from epochline.declare.names import ledger_prefix
from epochline.declare.source import FromGroup, KafkaSource, OneSource
from epochline.errors import SourceError, SourceUnavailableError, TopicMissingError
from epochline.ports import OffsetSource
from epochline.protocol.balances import LogGaps
from epochline.protocol.mirror import MirroredOffset
from epochline.protocol.offsets import (
    Head,
    PlannedRange,
    TopicPartition,
    belongs_to,
    cluster_text,
    in_ledger,
    in_source,
)
from epochline.protocol.planning import LogEnd, SourceView

V = TypeVar("V")


def offsets_of_source(declared: DeclaredSource, of_one: Callable[[OneSource], OffsetSource]) -> OffsetSource:
    """What is asked for the offsets of a declared source. Raises what ``of_one`` does, with the input's name."""
    if not isinstance(declared, Sources):
        return of_one(declared)
    asked = {}
    for name, input_ in declared.inputs.items():
        with _naming(name, input_.source):
            asked[name] = of_one(input_.source)
    return SeveralOffsets(declared, asked)


class SeveralOffsets(OffsetSource):
    """Several sources, whose topics have the prefix of their input. Errors name the input and its connection."""

    def __init__(self, declared: Sources, asked: Mapping[str, OffsetSource]) -> None:
        self._declared = declared
        self._asked = asked

    def look(self, source: DeclaredSource) -> SourceView:
        """Look at every source. Nothing is returned if one of them does not answer."""
        if not isinstance(source, Sources):
            raise TypeError(f"one source of {', '.join(self._asked)} was asked for, where all are looked at together")
        views, missing, missing_in = {}, set(), []
        clusters = {}
        for name, input_ in source.inputs.items():
            try:
                with _naming(name, input_.source):
                    views[name] = self._asked[name].look(input_.source)
                clusters[name] = views[name].cluster_id
            except TopicMissingError as error:
                missing |= {f"{ledger_prefix(name)}{topic}" for topic in error.topics}
                missing_in.append(str(error))
                clusters[name] = error.cluster_id
        if missing:
            raise TopicMissingError(" ".join(missing_in), missing, cluster_text(clusters))
        return SourceView(
            cluster_id=cluster_text(clusters),
            partitions=tuple(
                replace(partition, tp=in_ledger(name, partition.tp))
                for name, view in views.items()
                for partition in view.partitions
            ),
            invisible_allowed=_all({name: view.invisible_allowed for name, view in views.items()}),
            compacted=_all({name: view.compacted for name, view in views.items()}),
        )

    def counted(self, ranges: Sequence[PlannedRange]) -> Mapping[tuple[str, int], int]:
        return self._of_ranges(ranges, lambda asked, own: asked.counted(own))

    def gaps(self, ranges: Sequence[PlannedRange]) -> Mapping[tuple[str, int], LogGaps]:
        return self._of_ranges(ranges, lambda asked, own: asked.gaps(own))

    def _of_ranges(
        self,
        ranges: Sequence[PlannedRange],
        ask: Callable[[OffsetSource, Sequence[PlannedRange]], Mapping[tuple[str, int], V]],
    ) -> Mapping[tuple[str, int], V]:
        answers: dict[tuple[str, int], V] = {}
        for name, asked in self._asked.items():
            own = [
                replace(planned, tp=in_source(name, planned.tp))
                for planned in ranges
                if belongs_to(name, planned.tp.topic)
            ]
            with self._naming(name):
                answer = ask(asked, own) if own else {}
            answers |= {(f"{ledger_prefix(name)}{topic}", number): value for (topic, number), value in answer.items()}
        return answers

    def readable_ends(self, sources: Sequence[KafkaSource]) -> Mapping[TopicPartition, int]:
        raise SourceError("several sources start no runs.")

    def log_ends(self, sources: Sequence[KafkaSource]) -> Sequence[LogEnd]:
        raise SourceError("each Kafka of several sources is asked for the ends of its own logs.")

    def offsets_at(self, partitions: Sequence[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int | None]:
        return self._of_partitions(partitions, lambda asked, own: asked.offsets_at(list(own), moment))

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        return self._of_partitions(
            epochs, lambda asked, own: asked.leader_epoch_ends({there: epochs[tp] for there, tp in own.items()})
        )

    def _of_partitions(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[OffsetSource, Mapping[TopicPartition, TopicPartition]], Mapping[TopicPartition, int | None]],
    ) -> Mapping[TopicPartition, int | None]:
        answers: dict[TopicPartition, int | None] = {}
        for name, asked in self._asked.items():
            own = {in_source(name, tp): tp for tp in partitions if belongs_to(name, tp.topic)}
            with self._naming(name):
                answers |= {own[tp]: answer for tp, answer in (ask(asked, own) if own else {}).items()}
        return answers

    def confirm(self, group: str) -> None:
        for name, asked in self._asked.items():
            with self._naming(name):
                asked.confirm(group)

    def mirrored(self, group: str) -> Mapping[tuple[str, int], MirroredOffset]:
        """What the group holds of each source. A source with ``mirror=False`` is asked only for its startup's group."""
        offsets: dict[tuple[str, int], MirroredOffset] = {}
        for name, asked in self._asked.items():
            with self._naming(name):
                source = self._declared.inputs[name].source
                if source.mirror or (isinstance(source.startup, FromGroup) and source.startup.group == group):
                    offsets |= {
                        (f"{ledger_prefix(name)}{topic}", partition): offset
                        for (topic, partition), offset in asked.mirrored(group).items()
                        if source.reads(topic)
                    }
        return offsets

    def mirror(
        self, group: str, heads: Sequence[Head], generation: int, epoch_id: int, token: str | None = None,
        number: int | None = None,
    ) -> None:  # fmt: skip
        """Write the heads to the group in each cluster. A cluster that does not answer keeps no other from it."""
        failed: list[SourceError] = []
        for name, input_ in self._declared.inputs.items():
            own = [replace(head, tp=in_source(name, head.tp)) for head in heads if belongs_to(name, head.tp.topic)]
            if input_.source.mirror and own:
                try:
                    with _naming(name, input_.source):
                        self._asked[name].mirror(group, own, generation, epoch_id, token, number)
                except SourceError as error:
                    failed.append(error)
        if failed:
            raise failed[0]

    def group_retention(self) -> timedelta | None:
        """The shortest of the clusters; None if one of them does not say."""
        kept = []
        for name, input_ in self._declared.inputs.items():
            if input_.source.mirror:
                with self._naming(name):
                    kept.append(self._asked[name].group_retention())
        stated = [retention for retention in kept if retention is not None]
        return min(stated, default=None) if len(stated) == len(kept) else None

    def forget(self, group: str) -> None:
        for name, asked in self._asked.items():
            with self._naming(name):
                asked.forget(group)

    def _naming(self, name: str) -> AbstractContextManager[None]:
        return _naming(name, self._declared.inputs[name].source)


def _all(topics: Mapping[str, Iterable[str]]) -> frozenset[str]:
    return frozenset(f"{ledger_prefix(name)}{topic}" for name, own in topics.items() for topic in own)


@contextmanager
def _naming(name: str, source: OneSource) -> Iterator[None]:
    """Name the input and its connection in the errors of the block."""
    try:
        yield
    except TopicMissingError as error:
        raise TopicMissingError(f"source {name} ({source.where}): {error}", error.topics, error.cluster_id) from error
    except SourceUnavailableError as error:
        raise SourceUnavailableError(f"source {name} ({source.where}): {error}") from error
