"""The span of Kafka's timestamps in a batch, from which the ledger tells how long records waited (G7)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (datetime(9999, 12, 31, tzinfo=UTC) - _BEGIN) // timedelta(microseconds=1)
_NONE = -1


def microseconds(source: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The timestamps of a batch of `source_batch`, in microseconds since 1970; negative where there is none."""
    return np.asarray(pc.fill_null(source.column("timestamp").cast(pa.int64()), _NONE))


def span(timestamps: npt.NDArray[np.int64]) -> tuple[datetime | None, datetime | None]:
    """The oldest and the newest of timestamps from `microseconds`; None and None if none can be used.

    Kafka stores -1 for a record without a timestamp. It also takes any number from a producer, and what lies after the
    year 9999 is no time for Python or for a reader.
    """
    if timestamps.size and not (timestamps.min() >= 0 and timestamps.max() <= _LAST):
        timestamps = timestamps[(timestamps >= 0) & (timestamps <= _LAST)]
    if not timestamps.size:
        return None, None
    oldest, newest = (_BEGIN + timedelta(microseconds=int(one)) for one in (timestamps.min(), timestamps.max()))
    return oldest, newest
