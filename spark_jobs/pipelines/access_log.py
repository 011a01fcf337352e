"""Web server access logs: NCSA Common and Combined Log Format, one line per record.

``client ident user [17/May/2015:10:05:03 +0000] "GET /path HTTP/1.1" 200 203023 "referrer" "user agent"``

The client is the first field as the server wrote it: an IPv4 or IPv6 address, a host name, or a word such as
``unknown`` or ``-``. A list of proxies, a virtual host before the client (``vhost_combined``), and a client with a port
make bad records: which address is the client, the line does not say.
"""

import pyarrow as pa
import pyarrow.compute as pc

# Lines are parsed in two ways that agree: the usual ones by splitting at quotes, the others by one expression. RE2 is
# fast with few groups over bytes, and slow with many groups over text.
_CLIENT = r"[^ ,:\[\]]+|[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%[^ ,:\[\]]+)?"
# An address in the place of ident, or a user "- name", means that another field stands before the client.
_IDENT = r"[0-9]+|[^ ,:]*[^ ,:0-9.][^ ,:]*"
_HEAD = rf"\A(?P<client>{_CLIENT}) (?:{_IDENT}) (?:[^\[ -][^\[]*|-(?:[^\[ ][^\[]*| *))\[(?P<time>[^\]]*)\] \z"
_REST = (
    r"\A (?P<status>[0-9][0-9][0-9]) (?P<bytes>[0-9]+|-)"
    r'(?: (?P<referrer>"[^"\\]*)" (?P<user_agent>"[^"\\]*)")?\z'
)
_DIGITS = 18

# Inside quotes a backslash escapes the next byte; a request that contains a bare quote ends before the status.
_QUOTED = r'(?:[^"\\]|\\.)*'
_REQUEST_ON = (
    r" \[(?P<time>[0-9]{2}/[A-Za-z]{3}/[0-9]{4}:[^\]]*)\]"
    rf' "(?P<request>{_QUOTED}|.*?)" (?P<status>[0-9]{{3}}) (?P<bytes>[0-9]{{1,{_DIGITS}}}|-)(?P<tail>(?: .*)?)\z'
)
_LINE = rf"(?s)\A(?P<client>{_CLIENT}) (?:{_IDENT}) (?:[^ -].*?|-(?:[^ ].*?)?) *{_REQUEST_ON}"
_OTHER_HEAD = rf"(?s)\A[^ ]+ [^ ]+ [^ ].*?{_REQUEST_ON}"
# Referrer and agent may be absent, other fields may follow, and a truncated line has no closing quote. Each group
# includes the opening quote, which tells an empty field from a missing one.
_TAIL = (
    rf'(?s)\A (?P<referrer>"{_QUOTED}\\?)'
    rf'(?:"(?: (?P<user_agent>"{_QUOTED}\\?)(?:".*)?|.*))?\z'
)
_FIELDS = ("client", "time", "request", "status", "bytes", "referrer", "user_agent")
_REQUEST = r"(?s)\A(?P<method>[A-Za-z][A-Za-z_-]*) (?P<path>[^ ](?:.*[^ ])?) (?P<protocol>[A-Za-z]+/[0-9.]+)\z"
_PLAIN_REQUEST = r"\A(?P<method>[A-Za-z]+) (?P<path>[^ ]+) (?P<protocol>[A-Za-z]+/[0-9.]+)\z"
_TIME = (
    r"\A(?P<day>[0-9]{2})/(?P<month>[A-Za-z]{3})/(?P<year>[0-9]{4}):(?P<clock>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r" (?P<hours>[+-][0-9]{2})(?P<minutes>[0-9]{2})\z"
)
_MONTHS = pa.array(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"])
_NUMBERS = pa.array([f"{number:02d}" for number in range(1, 13)])


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    r"""Parse lines; a line without one client, time, request, status and size in their places is a bad record.

    A size of ``-`` and a missing referrer or agent are NULL. A request that is not ``METHOD path PROTOCOL`` becomes the
    path as a whole. Quoted fields keep the server's escapes; bytes that a text column cannot hold (invalid UTF-8, NUL)
    are escaped in the same way, as ``\xhh``.
    """
    values = _as_text(batch.column("value"))
    field = _taken_apart(values)
    ts = _moments(field["time"])
    method, path, protocol = _request(field["request"])
    missing = pc.and_(field["client"].is_null(), values.is_valid())
    errors = pa.nulls(len(values), pa.string())
    if missing.true_count:
        other_head = pc.and_(missing, pc.match_substring_regex(values, _OTHER_HEAD))
        errors = _marked(errors, other_head, "one client, ident and user are not what stands before the time")
    errors = _marked(errors, missing, "client, time, request, status and size are not in their places")
    errors = _marked(errors, pc.and_(ts.is_null(), field["client"].is_valid()), "there is no such time")
    columns = {
        "client": field["client"].cast(pa.string()),
        "ts": ts,
        "method": method,
        "path": path,
        "protocol": protocol,
        "status": field["status"].cast(pa.string()).cast(pa.int32()),
        "bytes": _sizes(field["bytes"]).cast(pa.string()).cast(pa.int64()),
        "referrer": _quoted(field["referrer"]),
        "user_agent": _quoted(field["user_agent"]),
        "_error": errors,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def per_client(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One request and its bytes for each line, to be summed per client."""
    rows = batch.num_rows
    sizes = pc.fill_null(batch.column("bytes"), 0)
    requests = pa.array([1], pa.int64()).take(pa.nulls(rows, pa.int64()).fill_null(0))
    return pa.RecordBatch.from_arrays([batch.column("client"), requests, sizes], names=["client", "requests", "bytes"])


def _as_text(values: pa.Array) -> pa.Array:
    """Escape the bytes that a text column cannot hold."""
    if pc.any(pc.match_substring(values, b"\0")).as_py():
        values = pc.replace_substring(values, b"\0", b"\\x00")
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        lines = (value.as_py() for value in values)
        escaped = [None if line is None else line.decode(errors="backslashreplace").encode() for line in lines]
        return pa.array(escaped, pa.binary())
    return values


def _groups(texts: pa.Array, pattern: str) -> dict[str, pa.Array]:
    """Named groups of an expression; all are NULL if it does not match."""
    groups = pc.extract_regex(texts, pattern)
    return dict(zip((group.name for group in groups.type), groups.flatten(), strict=True))


def _taken_apart(lines: pa.Array) -> dict[str, pa.Array]:
    """The fields of each line, as bytes; all are NULL for a malformed line."""
    if pc.any(pc.match_substring_regex(lines, r"[\r\n]\z")).as_py():
        lines = pc.replace_substring_regex(lines, r"[\r\n]+\z", "")
    # Up to three pieces: the part before the request, the request, and the rest.
    pieces = pc.split_pattern(lines, '"', max_splits=2)
    whole = pc.equal(pc.list_value_length(pieces), 3)
    pieces = pc.if_else(whole, pieces, pa.scalar([None] * 3, pieces.type))
    field = _groups(pc.list_element(pieces, 0), _HEAD)
    field["request"] = pc.list_element(pieces, 1)
    field |= _groups(pc.list_element(pieces, 2), _REST)
    plain = pc.and_(field["client"].is_valid(), pc.less_equal(pc.binary_length(field["bytes"]), _DIGITS))
    plain = pc.and_(plain, pc.invert(pc.ends_with(field["request"], "\\")))
    odd = pc.invert(pc.fill_null(plain, False))
    if not odd.true_count:
        return field
    odd_fields = _groups(lines.filter(odd), _LINE)
    odd_fields |= _groups(odd_fields.pop("tail"), _TAIL)
    return {name: pc.replace_with_mask(field[name], odd, odd_fields[name]) for name in _FIELDS}


def _request(requests: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    field = _groups(requests, _PLAIN_REQUEST)
    odd = pc.and_(field["method"].is_null(), requests.is_valid())
    if odd.true_count:
        odd_requests = requests.filter(odd)
        odd_fields = _groups(odd_requests, _REQUEST)
        odd_fields["path"] = pc.coalesce(odd_fields["path"], odd_requests)
        field = {name: pc.replace_with_mask(field[name], odd, odd_fields[name]) for name in field}
    method, path, protocol = (field[name].cast(pa.string()) for name in ("method", "path", "protocol"))
    return method, path, protocol


def _marked(errors: pa.StringArray, bad: pa.BooleanArray, reason: str) -> pa.StringArray:
    """Add a reason to the errors of bad rows that have none yet."""
    if not bad.true_count:
        return errors
    return pc.if_else(pc.and_(bad, errors.is_null()), reason, errors)


def _moments(times: pa.Array) -> pa.Array:
    """Parse times to UTC; NULL if there is no such day, hour or offset.

    Converted through ISO 8601, because strptime reads the 31st of February as the 3rd of March.
    """
    encoded = times.cast(pa.string()).dictionary_encode()
    field = _groups(encoded.dictionary, _TIME)
    month = _NUMBERS.take(pc.index_in(pc.utf8_lower(field["month"]), _MONTHS))
    date = pc.binary_join_element_wise(field["year"], month, field["day"], "-")
    zone = pc.binary_join_element_wise(field["hours"], field["minutes"], ":")
    texts = pc.binary_join_element_wise(pc.binary_join_element_wise(date, field["clock"], "T"), zone, "")
    return _cast_existing(texts, pa.timestamp("us", "UTC")).take(encoded.indices)


def _cast_existing(texts: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return texts.cast(target)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.array([None], target)
    middle = len(texts) // 2
    return pa.concat_arrays(
        [_cast_existing(texts.slice(0, middle), target), _cast_existing(texts.slice(middle), target)]
    )


def _sizes(texts: pa.Array) -> pa.Array:
    """Replace ``-`` by NULL."""
    return pc.if_else(pc.equal(texts, b"-"), None, texts)


def _quoted(texts: pa.Array) -> pa.Array:
    """Remove the opening quote; NULL for a missing field, which RE2 returns as an empty text."""
    present = pc.if_else(pc.equal(texts, b""), None, texts)
    return pc.utf8_slice_codeunits(present.cast(pa.string()), 1)
