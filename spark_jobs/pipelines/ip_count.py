"""Parses visits: ``2019-09-15_10:00:00 192.168.1.1``, or a line of a web server's log."""

import pyarrow as pa
import pyarrow.compute as pc

# Over bytes, because the rest of a log's line may not be text. The extracted groups are ASCII.
_SHORT = r"\A(?P<time>(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})_[0-9]{2}:[0-9]{2}:[0-9]{2}) (?P<ip>[!-~]+)\s*\z"
_LOGGED = (
    r"\A(?P<ip>[!-~]+) [^\[]*"
    r"\[(?P<time>(?P<day>[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}):[0-9]{2}:[0-9]{2}:[0-9]{2} [+-][0-9]{4})\]"
)


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Parse ``ip`` and ``visited_at`` (UTC if a line names no zone); a line of neither form is a bad record."""
    lines = batch.column("value")
    short, logged = pc.extract_regex(lines, _SHORT), pc.extract_regex(lines, _LOGGED)
    ip = pc.coalesce(_text(short, "ip"), _text(logged, "ip"))
    visited_at = pc.coalesce(
        pc.assume_timezone(_moments(short, "%Y-%m-%d", "_%H:%M:%S"), "UTC"),
        pc.cast(_moments(logged, "%d/%b/%Y", ":%H:%M:%S %z"), pa.timestamp("us", tz="UTC")),
    )
    error = "is neither 'yyyy-MM-dd_HH:mm:ss IP' nor a line of an access log"
    errors = pc.if_else(pc.is_null(visited_at), pa.scalar(error), pa.scalar(None, pa.string()))
    return pa.RecordBatch.from_arrays([ip, visited_at, errors], names=["ip", "visited_at", "_error"])


def _text(groups: pa.StructArray, name: str) -> pa.Array:
    return pc.struct_field(groups, name).cast(pa.string())


def _moments(groups: pa.StructArray, day: str, clock: str) -> pa.Array:
    """Parse moments; NULL for a day that does not exist, which strptime would read as a day of the next month."""
    moments, days = _read(_text(groups, "time"), day + clock), _text(groups, "day")
    exists = pc.equal(pc.strftime(_read(days, day), format=day), days)
    return pc.if_else(exists, moments, pa.scalar(None, moments.type))


def _read(texts: pa.Array, form: str) -> pa.Array:
    return pc.strptime(texts, format=form, unit="us", error_is_null=True)
