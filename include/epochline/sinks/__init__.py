"""Sinks that show an epoch after its commit: topics, files and third-party sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from epochline.errors import SinkError
from epochline.protocol.sink import Sink

if TYPE_CHECKING:
    from epochline.declare.pipeline import Pipeline
    from epochline.declare.specs import ExternalSpec
    from epochline.postgres.ledger.transactions import PostgresLedger, SinkFactory


def external_sink(declared: ExternalSpec) -> Sink:
    """Construct an external sink from its declaration, on the driver or on an executor.

    Raises:
        DeclarationError: the class of a custom sink cannot be imported.
        SinkError: the URL of a file sink cannot be opened here.
    """
    # Imported here: commands that read no declaration load this package without pydantic.
    from epochline.declare.specs import FilesSpec, load_function

    if isinstance(declared, FilesSpec):
        from epochline.sinks.files import FileSink

        return FileSink(declared)
    return cast("Sink", load_function(declared.sink)(**declared.options))


def sinks_by(kafka_settings: Callable[[str], Mapping[str, str]]) -> SinkFactory:
    """Return a factory of a pipeline's sinks, given a look-up of Kafka settings by connection id."""

    def make_sink(ledger: PostgresLedger, pipeline: Pipeline, name: str) -> Sink:
        from epochline.sinks.topic import TopicSink

        for outbox in pipeline.outboxes:
            if (topic := outbox.topic).name == name:
                sources = {
                    source.connection: partial(kafka_settings, source.connection)
                    for source in pipeline.kafka_sources.values()
                    if source.connection != topic.connection and any(map(source.reads, topic.sent_topics))
                }
                settings = partial(kafka_settings, topic.connection)
                return TopicSink(pipeline.name, outbox, settings, ledger.connection, sources)
        (declared,) = (sink for sink in pipeline.external if sink.name == name)
        try:
            return external_sink(declared.spec)
        except SinkError:
            raise
        except Exception as error:  # a third-party class or a store's driver may raise anything
            raise SinkError(
                f"{name} of {pipeline.name} cannot be opened from here: {type(error).__name__}: {error}"
            ) from error

    return make_sink
