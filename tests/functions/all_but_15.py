"""A mended parse of the program raw_value: it sets 15 aside, which leaves the topic as it is."""

import pyarrow as pa

from pipelines import raw_value


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = raw_value.parse(batch).to_pylist()
    aside = [{"value": None, "_error": "15 is set aside"} if row["value"] == "15" else row for row in rows]
    types = {"value": pa.string(), "_error": pa.string()}
    return pa.RecordBatch.from_pylist(aside, schema=pa.schema(types))
