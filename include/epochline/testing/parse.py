"""Parses values in the tests of a pipeline's author, without Kafka, Spark or a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochline.declare.pipeline import Pipeline

if TYPE_CHECKING:
    from epochline.arrow.stage.preview import ParsedRecords


def parse_values(pipeline: Pipeline, values: Sequence[bytes | None]) -> ParsedRecords:
    """Parse values as an epoch of the pipeline would; the n-th value has offset n of partition 0 of topic ``test``.

    Args:
        pipeline: the declaration.
        values: one per record; None for a tombstone.

    Raises:
        DeclarationError: a function that the declaration names cannot be imported.
        EpochlineError: the parse or a ``select`` broke its contract.
    """
    # Imported here: the fakes of this folder need no Arrow.
    import pyarrow as pa

    from epochline.arrow.stage.preview import RecordParser

    parser = RecordParser(pipeline)
    parser.add(
        pa.record_batch(
            {
                "topic": pa.array(["test"] * len(values), pa.string()),
                "partition": pa.array([0] * len(values), pa.int32()),
                "offset": pa.array(range(len(values)), pa.int64()),
                "value": pa.array(values, pa.binary()),
            }
        )
    )
    return parser.result
