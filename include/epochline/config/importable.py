"""Imports the functions and classes that a declaration names, which the declaration itself only looks up."""

from collections.abc import Iterator
from importlib import import_module

from epochline.declare.external import CustomSink
from epochline.declare.pipeline import Pipeline
from epochline.declare.topic import KafkaTopic


def references(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Each field that names a function or a class, with what it names."""
    for name, given in pipeline.inputs.items():
        if isinstance(given.parse, str):
            yield f"source.inputs.{name}.parse" if name else "parse", given.parse
    if pipeline.transform is not None:
        yield "transform", pipeline.transform
    for sink in pipeline.sinks:
        if sink.select is not None:
            yield f"sinks.{sink}.select", sink.select
        if isinstance(sink, KafkaTopic) and isinstance(sink.value, str):
            yield f"sinks.{sink}.value", sink.value
        if isinstance(sink, CustomSink):
            yield f"sinks.{sink}.sink", sink.sink
    for state in pipeline.state:
        if state.keys is not None:
            yield f"state.{state}.keys", state.keys


def unimportable(pipeline: Pipeline) -> list[str]:
    """A message for each function or class that cannot be imported here."""
    messages = []
    for field, reference in references(pipeline):
        module, _, name = reference.partition(":")
        try:
            getattr(import_module(module), name)
        except Exception as error:  # a module may raise anything
            messages.append(
                f"{field}: {reference} cannot be imported ({type(error).__name__}: {error}); correct {module}, or"
                " install what it imports"
            )
    return messages
