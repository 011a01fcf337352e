"""Sinks that show an epoch after its commit: topics, files, and those that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from epochline.beside import Beside, Files, OwnSink
from epochline.declared import load_function
from epochline.sink import Sink

if TYPE_CHECKING:
    from epochline.ledger.postgres import Outlets, PostgresLedger
    from epochline.pipeline import Pipeline


def beside_sink(declared: Beside) -> Sink:
    """The sink behind a declaration, on the driver as on executors.

    Raises:
        DeclarationError: an own sink's class cannot be imported, or does not take its options.
    """
    if isinstance(declared, Files):
        from epochline.outlets.files import FileSink

        return FileSink(declared)
    if isinstance(declared, OwnSink):
        return cast("Sink", load_function(declared.sink)(**declared.options))
    raise NotImplementedError(f"{declared}: there is no such kind of sink")


def sinks_by(kafka_settings: Callable[[str], Mapping[str, str]]) -> Outlets:
    """What makes a pipeline's sinks, given how a Kafka connection is looked up by its id."""

    def outlets(ledger: PostgresLedger, pipeline: Pipeline) -> Mapping[str, Sink]:
        from epochline.outlets.topic import TopicSink

        topics: dict[str, Sink] = {
            outbox.topic.name: TopicSink(
                pipeline.name, outbox, partial(kafka_settings, outbox.topic.connection), ledger
            )
            for outbox in pipeline.outboxes
        }
        return topics | {declared.name: beside_sink(declared) for declared in pipeline.beside}

    return outlets
