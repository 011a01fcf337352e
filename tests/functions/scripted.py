"""A parse that does what its records say: ``sleep 2`` sleeps two seconds, ``bad`` is an error, the rest are values.

``raise`` raises an exception.
``wait NAME`` waits for a file of that name in the stack's home. A file ``forgive`` in the stack's home makes ``bad`` a value like any other.
"""

import os
import time
from pathlib import Path

import pyarrow as pa


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    home = Path(os.environ["EPOCHLINE_HOME"])
    values = [value.as_py().decode() for value in batch.column("value")]
    for value in values:
        if value.startswith("sleep "):
            time.sleep(float(value.split()[1]))
        while value.startswith("wait ") and not (home / value.split()[1]).exists():
            time.sleep(0.1)
        if value == "raise" and not (home / "forgive").exists():
            raise KeyError("city")
    strict = not (home / "forgive").exists()
    errors = ["the record says that it is bad" if value == "bad" and strict else None for value in values]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.string()), pa.array(errors, pa.string())], names=["value", "_error"]
    )
