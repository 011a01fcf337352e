"""What OpenLineage is told, as its specification writes it: datasets by its rules of naming, facets as JSON.

Imported only when the provider asks.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from epochline.airflow.lineage import ADDRESSES, Known, Written
from epochline.declare.external import Files
from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import CustomSource
from epochline.declare.table import PostgresTable
from epochline.declare.topic import KafkaTopic
from epochline.declare.version import VERSION
from epochline.protocol.offsets import PlannedRange, belongs_to, in_source

Facets = dict[str, dict[str, Any]]

PRODUCER = f"https://github.com/epochline/epochline/tree/v{VERSION}"
OWN = "https://raw.githubusercontent.com/epochline/epochline/main/include/epochline/airflow/facets"
"""Where the schemas of our own facets are. A schema never changes; another version of it is another file."""

_SPEC = "https://openlineage.io/spec/facets"
_SCHEMAS = {
    name: f"{folder}/{kind}.json#/$defs/{kind}"
    for name, folder, kind in (
        ("epochline_epoch", f"{OWN}/1-0-0", "EpochlineEpochRunFacet"),
        ("epochline_epochs", f"{OWN}/1-0-0", "EpochlineEpochsOutputDatasetFacet"),
        ("epochline_offsets", f"{OWN}/1-0-0", "EpochlineOffsetsInputDatasetFacet"),
        ("outputStatistics", f"{_SPEC}/1-0-2", "OutputStatisticsOutputDatasetFacet"),
        ("schema", f"{_SPEC}/1-2-0", "SchemaDatasetFacet"),
    )
}

_GROWING_TABLE = "epochline.sources.growing_table:GrowingTable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A dataset: ``facets`` are its own, ``of_run`` those of one run's input or output."""

    namespace: str
    name: str
    facets: Facets = field(default_factory=dict)
    of_run: Facets = field(default_factory=dict)


def operator_lineage(pipeline: Pipeline, epoch_id: str | None, known: Known | None) -> Any:
    """The provider's ``OperatorLineage`` of a task; ``epoch_id`` is the text that ``plan_epoch`` gave."""
    from airflow.providers.openlineage.extractors import OperatorLineage  # type: ignore[import-not-found]
    from openlineage.client import event_v2, facet_v2  # type: ignore[import-not-found]

    known = known or Known()
    run, data = facet_v2.RunFacet, facet_v2.DatasetFacet
    return OperatorLineage(
        run_facets=_built(run, epoch_facets(pipeline, epoch_id, known)),
        inputs=[
            event_v2.InputDataset(
                one.namespace, one.name, facets=_built(data, one.facets),
                inputFacets=_built(facet_v2.InputDatasetFacet, one.of_run),
            )
            for one in inputs(pipeline, known)
        ],
        outputs=[
            event_v2.OutputDataset(
                one.namespace, one.name, facets=_built(data, one.facets),
                outputFacets=_built(facet_v2.OutputDatasetFacet, one.of_run),
            )
            for one in outputs(pipeline, known)
        ],
    )  # fmt: skip


def _built(base: Any, facets: Facets) -> dict[str, Any]:
    """Facets as instances of a class of the client, whatever version of the client there is."""
    import attr

    built = {}
    for name, facet in facets.items():
        values = {key: value for key, value in facet.items() if not key.startswith("_")}
        kind = attr.make_class(name, {key: attr.field() for key in values}, bases=(base,), kw_only=True)
        built[name] = kind(**values, producer=facet["_producer"])
        built[name]._schemaURL = facet["_schemaURL"]
    return built


def _facet(name: str, **values: Any) -> Facets:
    return {name: {"_producer": PRODUCER, "_schemaURL": _SCHEMAS[name], **values}}


def epoch_facets(pipeline: Pipeline, epoch_id: str | None, known: Known) -> Facets:
    """The run's facet: the pipeline and its epoch, as far as they are known."""
    epoch = known.epoch
    if epoch is None:
        started = {"epochId": int(epoch_id)} if epoch_id else {}
        return _facet("epochline_epoch", pipeline=pipeline.name, **started)
    written = {} if epoch.rows_written is None else {"rowsWritten": epoch.rows_written}
    return _facet(
        "epochline_epoch", pipeline=pipeline.name, epochId=epoch.epoch_id, generation=epoch.generation,
        kind=str(epoch.kind), state=str(epoch.state), attempt=epoch.attempt, records=asdict(epoch.counts), **written,
    )  # fmt: skip


def inputs(pipeline: Pipeline, known: Known) -> Iterator[Described]:
    """The topics and growing tables that the task's epochs read, with the ranges if they are known.

    A source of the user's own has no name in OpenLineage, and a connection that was not used no address.
    """
    for input_name, input_ in pipeline.inputs.items():
        source = input_.source
        here = ADDRESSES.get(source.connection or "")
        if here is None:
            continue
        if known.ranges is None:
            ranges: Mapping[str, Sequence[PlannedRange]] = dict.fromkeys(source.topics, ())
        else:
            ranges = _by_topic(input_name, known.ranges)
        for topic, planned in ranges.items():
            of_run = _offsets(planned)
            if not isinstance(source, CustomSource):
                yield Described(namespace=here.kafka, name=topic, of_run=of_run)
            elif source.source == _GROWING_TABLE:
                table = f"{source.options.get('schema', 'public')}.{source.options['table']}"
                yield Described(namespace=here.postgres, name=f"{here.database}.{table}", of_run=of_run)


def _by_topic(source: str, ranges: Iterable[PlannedRange]) -> dict[str, list[PlannedRange]]:
    of_topic: dict[str, list[PlannedRange]] = defaultdict(list)
    for planned in ranges:
        if belongs_to(source, planned.tp.topic):
            of_topic[in_source(source, planned.tp).topic].append(planned)
    return of_topic


def _offsets(ranges: Sequence[PlannedRange]) -> Facets:
    if not ranges:
        return {}
    partitions = [
        {"partition": planned.tp.partition, "start": planned.range.start, "until": planned.range.until}
        for planned in sorted(ranges, key=lambda planned: planned.tp)
    ]
    return _facet("epochline_offsets", offsets=sum(len(planned.range) for planned in ranges), partitions=partitions)


def outputs(pipeline: Pipeline, known: Known) -> Iterator[Described]:
    """The tables, topics and folders in which the task made rows visible."""
    for sink in pipeline.sinks:
        written = known.written.get(sink.table if isinstance(sink, PostgresTable) else sink.name)
        if written is None:
            continue
        if isinstance(sink, PostgresTable):
            here = ADDRESSES.get(pipeline.postgres_connection)
            if here is not None:
                # A table that another program made has columns that only the commit knows.
                columns = written.columns or sink.columns
                name = ".".join((here.database, *split_table(sink.table)))
                yield _output(here.postgres, name, written, {**columns, **sink.added_columns} if columns else {})
        elif isinstance(sink, KafkaTopic):
            here = ADDRESSES.get(sink.connection)
            # How many of the rows went to which of several topics is not counted.
            counted = written if len(sink.topics) == 1 else Written(epochs=written.epochs)
            if here is not None:
                yield from (_output(here.kafka, topic, counted, {}) for topic in sink.topics)
        elif isinstance(sink, Files):
            yield _output(*_folder(sink.path), written, sink.written)


def _output(namespace: str, name: str, written: Written, columns: Mapping[str, str]) -> Described:
    facets: Facets = {}
    of_run: Facets = {}
    if columns:
        facets |= _facet("schema", fields=[{"name": column, "type": kind} for column, kind in columns.items()])
    if written.rows is not None:
        of_run |= _facet("outputStatistics", rowCount=written.rows)
    if written.epochs:
        of_run |= _facet("epochline_epochs", epochIds=sorted(written.epochs))
    return Described(namespace=namespace, name=name, facets=facets, of_run=of_run)


def _folder(path: str) -> tuple[str, str]:
    """Namespace and name of a folder: a local path is a file's, and the key in a bucket has no slash before it."""
    if path.startswith("/"):
        return "file", path
    parts = urlsplit(path)
    host = f"{parts.scheme}://{parts.netloc}"
    return host, parts.path if parts.scheme == "webhdfs" else parts.path.removeprefix("/") or "/"
