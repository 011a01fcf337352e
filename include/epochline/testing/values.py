"""For tests of pipelines without servers: what a pipeline parses values to."""

from collections.abc import Sequence

import pyarrow as pa

from epochline.arrow.stage.preview import ParsedRecords, RecordParser
from epochline.declare.pipeline import Pipeline


def parse_values(pipeline: Pipeline, values: Sequence[bytes | None]) -> ParsedRecords:
    """Parse values (None: a tombstone) as an epoch would; the n-th has offset n of partition 0 of topic ``test``.

    Raises `DeclarationError` if a declared function cannot be imported, `EpochlineError` if it broke its contract.
    """
    parser = RecordParser(pipeline)
    columns = {
        "topic": pa.array(["test"] * len(values), pa.string()),
        "partition": pa.array([0] * len(values), pa.int32()),
        "offset": pa.array(range(len(values)), pa.int64()),
        "value": pa.array(values, pa.binary()),
    }
    parser.add(pa.record_batch(columns))
    return parser.result
