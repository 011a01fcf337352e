"""Sinks that show an epoch after its commit: topics, files, and those that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from epochline.errors import SinkError
from epochline.protocol.sink import Sink

if TYPE_CHECKING:
    from epochline.declare.pipeline import Pipeline
    from epochline.declare.specs import ExternalSpec
    from epochline.postgres.ledger.transactions import Outlets, PostgresLedger


def external_sink(declared: ExternalSpec) -> Sink:
    """The sink beside the database that a declaration names, on the driver as on executors.

    Raises:
        DeclarationError: an own sink's class cannot be imported, or does not take its options.
    """
    # Imported here: commands that read no declaration load this package without pydantic.
    from epochline.declare.functions import load_function
    from epochline.declare.specs import FilesSpec

    if isinstance(declared, FilesSpec):
        from epochline.sinks.files import FileSink

        return FileSink(declared)
    return cast("Sink", load_function(declared.sink)(**declared.options))


def sinks_by(kafka_settings: Callable[[str], Mapping[str, str]]) -> Outlets:
    """What makes a pipeline's sinks, given how a Kafka connection is looked up by its id."""

    def outlet(ledger: PostgresLedger, pipeline: Pipeline, name: str) -> Sink:
        from epochline.sinks.topic import TopicSink

        for outbox in pipeline.outboxes:
            if outbox.topic.name == name:
                return TopicSink(pipeline.name, outbox, partial(kafka_settings, outbox.topic.connection), ledger)
        (declared,) = (one for one in pipeline.external if one.name == name)
        try:
            return external_sink(declared.spec)
        except SinkError:
            raise
        except Exception as error:  # whatever the class of somebody else, or a driver of a store, raises
            raise SinkError(
                f"{name} of {pipeline.name} cannot be opened from here: {type(error).__name__}: {error}"
            ) from error

    return outlet
