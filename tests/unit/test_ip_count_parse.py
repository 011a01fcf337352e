"""The parse of the IP count: both forms of a line, and days that do not exist."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pipelines.ip_count import parse


@pytest.mark.parametrize(
    ("line", "moment"),
    [
        (b"2019-09-15_10:00:00 192.168.1.1", datetime(2019, 9, 15, 10, tzinfo=UTC)),
        (b'192.168.1.1 - - [28/Feb/2015:23:54:34 +0530] "GET /"', datetime(2015, 2, 28, 18, 24, 34, tzinfo=UTC)),
        (b"2019-02-30_10:00:00 192.168.1.1", None),
        (b'192.168.1.1 - - [30/Feb/2015:00:54:34 +0530] "GET /"', None),
        (b"neither", None),
    ],
)
def test_a_day_that_does_not_exist_is_the_record_s_error(line: bytes, moment: datetime | None) -> None:
    """E5, E5b: such a line is set aside, and counted on no other day."""
    parsed = parse(pa.RecordBatch.from_pydict({"value": pa.array([line], pa.binary())}))

    assert parsed.column("visited_at").to_pylist() == [moment]
    assert (parsed.column("_error")[0].as_py() is None) == (moment is not None)
