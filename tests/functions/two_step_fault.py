"""The sink that throws: rows as they are, until the run has written too many."""

import pyarrow as pa


def compared(batch: pa.RecordBatch) -> pa.RecordBatch:
    # Found where the run is: this function is shipped by value, and a variable of its own would be new in each epoch.
    import two_step_run

    for _ in range(batch.num_rows):
        two_step_run.write_one()
    return batch
