"""Parses records that no epoch has read yet in this process, and finds functions that break their contract."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from epochline.arrow.cast.batches import SOURCE_SCHEMA, record_batch, stored_record
from epochline.arrow.stage.batch_rows import BatchRows
from epochline.arrow.stage.preview import ParsedRecords, RecordParser
from epochline.declare.names import ledger_prefix
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError
from epochline.kafka.records import RecordReader
from epochline.protocol.offsets import PlannedRange
from epochline.sources.reading import SourceReader

__all__ = ["ParsedRecords", "parse_again", "preview_ranges"]


def preview_ranges(
    pipeline: Pipeline, source: RecordReader | SourceReader, ranges: Sequence[PlannedRange]
) -> ParsedRecords:
    """Read ranges, in Kafka as a ``read_committed`` consumer without a group, and parse records as an epoch would.

    ``source`` is as `epochline.adapters.Adapters.records` gives it.

    Raises:
        DeclarationError: a function that the declaration names cannot be imported.
        EpochlineError: the parse broke its contract, or the source does not answer, refuses, or lost offsets.
    """
    parser = RecordParser(pipeline)
    with source.session() as session:
        for planned in ranges:
            topic, partition = planned.tp.topic, planned.tp.partition
            for columns in session.read(topic, partition, planned.range):
                parser.add(record_batch(topic, partition, columns))
    return parser.result


def breaches(pipeline: Pipeline) -> Iterator[str]:
    """How a parse or a select of the user breaks its contract: what every attempt would fail of.

    Its functions can be imported. A batch without records shows a breach, or a batch with one. A function that raises
    an error on a made-up record proves nothing.
    """
    if len(pipeline.inputs) > 1:
        return
    for values in ([], [b""]):
        columns = {
            "topic": pa.array(["" for _ in values], pa.string()),
            "partition": pa.array([0 for _ in values], pa.int32()),
            "offset": pa.array([0 for _ in values], pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
        try:
            RecordParser(pipeline).add(pa.record_batch(columns))
        except EpochlineError as error:
            yield f"{error}. Every attempt would fail of it"
            return
        except Exception:  # noqa: S112 - as the docstring says
            continue


def parse_again(pipeline: Pipeline, records: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """The rows that today's parse makes of each stored record: none where it refuses, fails, or cannot be imported.

    A record has the fields of a row of the quarantine.
    """
    lenient = pipeline.model_copy(update={"bad_records": "quarantine"})
    flows = {}
    for name, spec in lenient.specs.items():
        with suppress(Exception):  # a function of the user's may not be here
            flows[ledger_prefix(name)] = BatchRows(spec, ())
    return [_rows_of_record(flows, record) for record in records]


def _rows_of_record(flows: Mapping[str, BatchRows], record: Any) -> list[dict[str, Any]]:
    stored = stored_record(
        record.topic, record.partition, record.offset, record.record_timestamp, record.key, record.value, record.headers
    )
    batch = pa.RecordBatch.from_pylist([stored], schema=SOURCE_SCHEMA)
    for prefix, flow in flows.items():
        if record.topic.startswith(prefix):
            with suppress(Exception):  # nor need it take the record
                return list(flow.parse_only(batch)[0].to_pylist())
    return []
