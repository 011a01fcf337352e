"""The sinks that follow the commit, topics and files: each is compared with what its epochs should have shown there."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from epochline.audit.findings import Difference, EpochResult, SinkResult
from epochline.audit.recorded import RecordedEpoch, inexact
from epochline.audit.session import AuditSession
from epochline.audit.shown_files import ShownFiles
from epochline.audit.topic_records import Receipt, SinkFindings, TopicRecords
from epochline.declare.external import Files
from epochline.declare.pipeline import Pipeline
from epochline.declare.topic import KafkaTopic
from epochline.errors import EpochlineError
from epochline.kafka.source import KafkaOffsets
from epochline.postgres.queries.statements import Row, run

T = TypeVar("T", TopicRecords, ShownFiles)
S = TypeVar("S", KafkaTopic, Files)

KafkaSettings = Callable[[str], Mapping[str, str]]
"""The settings of the brokers of a connection, by its id."""


class FollowingSinks:
    """The topics and files of a pipeline. Each is looked at before the first of its epochs is read again."""

    def __init__(
        self, connection: AuditSession, declared: Pipeline, settings: KafkaSettings | None,
        tell: Callable[[Difference], None], *, whole: bool,
    ) -> None:  # fmt: skip
        self._connection, self._pipeline = connection, declared.name
        self._settings, self._tell, self._whole = settings, tell, whole
        self._numbers = itertools.count()
        self._topics: dict[str, TopicRecords] = {}
        self._files: dict[str, ShownFiles] = {}
        self.why_not: dict[str, str] = {}
        """By sink, why something of it could not be compared."""
        self.notes: list[str] = []
        self._staged: dict[str, TopicRecords | ShownFiles] = {}
        self._declared, self._names = declared, {sink.name for sink in declared.post_commit_sinks}
        self.follow(declared)

    def follow(self, declared: Pipeline) -> None:
        """Go on with the epochs of a declaration."""
        self._declared, self._staged = declared, {}
        for box in declared.outboxes:
            self._attempt(box.topic, self._follow_topic)
            if (topic := self._topics.get(box.topic.name)) is not None:
                self._staged[box.table] = topic
        for files in declared.external:
            if isinstance(files, Files):
                self._attempt(files, self._follow_files)
            if (folder := self._files.get(files.name)) is not None:
                self._staged[files.name] = folder

    def _attempt(self, sink: S, follow: Callable[[S], bool]) -> None:
        """Open a sink, or go on with another declaration of it."""
        try:
            columns = {**sink.columns, **getattr(getattr(sink, "value", None), "columns", {})}
            if left_out := inexact(self._declared, sink, columns):
                self._give_up(sink.name, f"{', '.join(sorted(left_out))}: floating-point numbers of a transform")
            elif sink.name not in self.why_not and not follow(sink) and sink.name not in self._names:
                self._give_up(sink.name, "it is gone, and the pipeline does not declare it any more")
        except EpochlineError as error:
            self._give_up(sink.name, str(error))

    def _follow_topic(self, topic: KafkaTopic) -> bool:
        """Returns whether any of its topics is there."""
        if self._settings is None:
            self._give_up(topic.name, "its brokers are not known")
            return True
        settings, then = self._settings(topic.connection), self._receipts(topic.name)
        opened = self._topics.get(topic.name)
        if opened is not None:
            return opened.follow(topic)
        logs = KafkaOffsets(settings).held(topic.topics)
        self._topics[topic.name] = TopicRecords(
            self._connection, topic, next(self._numbers), settings, logs, then, self._receipts(topic.name)
        )
        return bool(logs)

    def _follow_files(self, files: Files) -> bool:
        """Returns whether any epoch is there."""
        opened = self._files.get(files.name)
        if opened is None or opened.declared != files:
            opened = self._files[files.name] = ShownFiles(self._connection, files, next(self._numbers))
        return opened.has_epochs

    def _give_up(self, sink: str, why: str) -> None:
        self.why_not.setdefault(sink, why)
        self._topics.pop(sink, None)
        self._files.pop(sink, None)

    def _receipts(self, sink: str) -> dict[int, Receipt]:
        with self._connection.snapshot():
            rows = run(self._connection, "audited_receipts", pipeline=self._pipeline, sink=sink)
        return {row.epoch_id: Receipt(rows=row.rows, shown=row.shown) for row in rows}

    @property
    def sinks(self) -> frozenset[str]:
        """The sinks whose rows are compared, as staging names them."""
        return frozenset(self._staged)

    def add(self, sink: str, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add rows that the sink should show of an epoch."""
        self._staged[sink].add(epoch_id, rows)

    def settle(
        self, group: Sequence[RecordedEpoch], results: Mapping[int, EpochResult], broken: Mapping[int, str],
        erased: Mapping[int, str],
    ) -> None:  # fmt: skip
        """Compare the files of epochs that were read again, and note whose rows are known.

        Args:
            group: the epochs.
            results: their results, to which those of the sinks are added.
            broken: by epoch, why its rows are not known.
            erased: by epoch, what was erased of it.
        """
        unknown = dict(broken) | {
            epoch_id: "bytes of its records were erased" for epoch_id in erased if results[epoch_id].kind == "requeue"
        }
        why_not = {epoch_id: f"values not compared: {why}" for epoch_id, why in unknown.items() if epoch_id in results}
        for _, topic in self._followed(self._topics):
            topic.leave_out([*why_not])
        for epoch_id, result in results.items():
            if any(read.not_judged for read in result.partitions):
                why_not.setdefault(epoch_id, "values not compared: records are not held")
        for name, topic in self._followed(self._topics):
            for epoch_id, result in results.items():
                said = why_not.get(epoch_id) or topic.complete(epoch_id)
                result.sinks.append(SinkResult(sink=name, said=said))
        for name, files in self._followed(self._files):
            self._compare_files(name, files, group, results, why_not)
        for sink in self._declared.post_commit_sinks:
            if sink.name not in {*self._topics, *self._files}:
                why = self.why_not.get(sink.name, "it is a sink of your own")
                for result in results.values():
                    result.sinks.append(SinkResult(sink=sink.name, said=f"not compared: {why}"))

    def _followed(self, sinks: Mapping[str, T]) -> list[tuple[str, T]]:
        """The sinks that the epochs of this declaration wrote."""
        return [(sink.name, sinks[sink.name]) for sink in self._declared.post_commit_sinks if sink.name in sinks]

    def _compare_files(
        self, name: str, files: ShownFiles, group: Sequence[RecordedEpoch], results: Mapping[int, EpochResult],
        why_not: Mapping[int, str],
    ) -> None:  # fmt: skip
        receipts: dict[int, Row] = {}
        with self._connection.snapshot():
            for epoch in group:
                rows = run(self._connection, "receipts_of_epoch", pipeline=self._pipeline, epoch_id=epoch.epoch_id)
                receipts |= {row.epoch_id: row for row in rows if row.sink == name}
        try:
            found = files.compare(results, receipts, why_not)
        except EpochlineError as error:
            self._give_up(name, str(error))
            return
        for difference in found.differences:
            if difference.epoch_id is not None:
                results[difference.epoch_id].differences += 1
            self._tell(difference)
        self.notes += [f"{name}: {note}" for note in found.notes]

    def finish(self) -> None:
        """Compare the topics, and find what no epoch of the ledger showed in files."""
        with self._connection.snapshot():
            rows = run(self._connection, "accepted_epochs", pipeline=self._pipeline)
        accepted = {row.shown_by: row.epoch_id for row in rows}
        for name, topic in [*self._topics.items()]:
            found = SinkFindings(name)
            try:
                topic.judge(found, accepted=name in accepted)
            except EpochlineError as error:
                self._give_up(name, str(error))
                continue
            for difference in found.differences:
                self._tell(difference)
            self.notes += [f"{name}: {note}" for note in found.notes]
            if found.not_judged:
                self.why_not[name] = "; ".join(found.not_judged)
        for name, files in self._files.items():
            if self._whole:
                for difference in files.strangers(self._receipts(name).keys(), accepted.get(name, 0)):
                    self._tell(difference)
        self.notes += [f"{sink}: not compared wholly: {why}" for sink, why in self.why_not.items()]
