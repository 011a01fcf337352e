"""A parse that takes fewer records until somebody mends it."""

import pyarrow as pa

MENDED = False


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = [(value or b"").decode() for value in batch.column("value").to_pylist()]
    errors = ["not yet understood" if value.startswith("bad") and not MENDED else None for value in values]
    return pa.RecordBatch.from_pydict({"value": values, "_error": pa.array(errors, pa.string())})
