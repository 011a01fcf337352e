"""Compares an access log with the tables of the pipeline `access_log`, without sharing code with the pipeline.

The log is parsed again in plain Python. Only a line without client, ident, user, time, request, status and size of at
most 18 digits in their places is malformed, and so is one whose first field is not one client: a list of proxies, a
virtual host before the client, a client with a port. Each sound line must be in ``access_log`` as often as it is in the
log, each malformed line must be in the quarantine with its bytes, and ``requests_per_client`` must hold the sums. The
target is read in one snapshot.

    python -m epochline_examples.access_log.check --log access.log --service epochline

Exit code 0: exact. 1: not exact. 2: the comparison failed. Give the password in a password file (PGPASSFILE,
~/.pgpass) or in PGPASSWORD. A password on the command line is refused, because every user can read it there.
"""

import argparse
import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import extensions

PIPELINE = "access_log"
SAMPLES = 5
_PAIRINGS = 1_000_000

Value = str | frozenset[str] | None
"""A column's value, or the values that it may have because escapes may be kept or resolved."""
ANYTHING: frozenset[str] = frozenset()
"""A column whose value does not follow from the line with certainty."""

Core = tuple[str | None, int | None, int | None, int | None]
"""client, microseconds since 1970, status, bytes: they follow from every sound line with certainty."""
Row = tuple[str | None, int | None, int | None, int | None, str | None, str | None, str | None, str | None, str | None]
"""`Core`, method, path, protocol, referrer, user agent."""

_LINE = re.compile(
    r'^(?P<client>[^\s\["]\S*) (?P<ident>\S+) (?P<user>[^ ].*? )\[(?P<time>[^\]]*)\]'
    r' "(?:(?P<request>(?:[^"\\]|\\.)*)|(?P<rough>.*?))" (?P<status>[0-9]{3}) (?P<size>[0-9]{1,18}|-)'
    r"(?P<tail>(?:\s.*)?)$",
    re.DOTALL,
)
_TIME = re.compile(r"^(\d\d)/([A-Za-z]{3})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)([0-5]\d)$", re.ASCII)
_TAIL = re.compile(r'^ "((?:[^"\\]|\\.)+)" "((?:[^"\\]|\\.)+)"$', re.DOTALL)
_REGULAR = re.compile(r"^([A-Z]+) (\S+) (HTTP/\d(?:\.\d)?)$", re.ASCII)
_NEARLY_REGULAR = re.compile(r"^\S+ .* [A-Za-z]+/\S*\s*$", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A sound line as the table must hold it; ``texts`` are method, path, protocol, referrer and user agent."""

    client: str
    seconds: int
    status: int
    size: int | None
    texts: tuple[Value, ...]

    @property
    def sure(self) -> bool:
        """Whether every column follows from the line with certainty."""
        return not any(isinstance(text, frozenset) for text in self.texts)

    @property
    def core(self) -> Core:
        """The row's first columns."""
        return self.client, self.seconds * 1_000_000, self.status, self.size

    def matches(self, texts: Sequence[str | None]) -> bool:
        """Whether a row with this core may be this line."""
        return all(
            expected is ANYTHING or (text in expected if isinstance(expected, frozenset) else text == expected)
            for expected, text in zip(self.texts, texts, strict=True)
        )


def parse(line: bytes) -> Expected | None:
    """Parse a line to its expected row; None if it is malformed."""
    match = _LINE.match(line.decode(errors="surrogateescape"))
    if match is None or not _one_client(match["client"], match["ident"], match["user"]):
        return None
    seconds = _seconds(match["time"])
    size = None if match["size"] == "-" else int(match["size"])
    if seconds is None:
        return None
    texts = (*_request(match["request"]), *_tail(match["tail"].rstrip()))
    # A text column holds neither NUL nor what is no UTF-8: the pipeline escapes both.
    client = match["client"].encode(errors="surrogateescape").replace(b"\0", b"\\x00")
    return Expected(
        client=client.decode(errors="backslashreplace"), seconds=seconds, status=int(match["status"]), size=size,
        texts=texts,
    )  # fmt: skip


def _one_client(client: str, ident: str, user: str) -> bool:
    """Whether the fields name one client: no list, no port, and no other field before it."""
    if any(mark in client for mark in ",[]") or any(mark in ident for mark in ",:"):
        return False
    if ":" in client:
        address, _, zone = client.partition("%")
        if address.count(":") < 2 or set(address) - set("0123456789abcdefABCDEF:.") or ":" in zone:
            return False
    is_address = "." in ident and not set(ident) - set("0123456789.")
    return not is_address and not (user.startswith("- ") and user[1:].strip())


def _seconds(time: str) -> int | None:
    match = _TIME.match(time)
    if match is None:
        return None
    day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = match.groups()
    try:
        zone = timezone(int(f"{sign}1") * timedelta(hours=int(zone_hours), minutes=int(zone_minutes)))
        number = _MONTHS.index(month.title()) + 1
        moment = datetime(int(year), number, int(day), int(hour), int(minute), int(second), tzinfo=zone)
    except ValueError:  # no such day, month, hour or zone
        return None
    return (moment - _EPOCH) // timedelta(seconds=1)


def _request(request: str | None) -> tuple[Value, Value, Value]:
    if request is None:  # an unescaped quote inside: the end of the request is ambiguous
        return ANYTHING, ANYTHING, ANYTHING
    match = _REGULAR.match(request)
    if match is not None:
        return match[1], _text(match[2]), match[3]
    if _NEARLY_REGULAR.match(request):  # such as a space in the path, a method in small letters
        return ANYTHING, ANYTHING, ANYTHING
    return None, _text(request), None


def _tail(tail: str) -> tuple[Value, Value]:
    if not tail:
        return None, None
    match = _TAIL.match(tail)
    return (ANYTHING, ANYTHING) if match is None else (_text(match[1]), _text(match[2]))


def _text(text: str) -> Value:
    if any(character == "\0" or "\udc80" <= character <= "\udcff" for character in text):
        return ANYTHING  # a text column cannot hold it unchanged
    return frozenset({text, _ESCAPE.sub(_unescaped, text)}) if "\\" in text else text


def _unescaped(match: re.Match[str]) -> str:
    if match[1] is not None:
        return chr(int(match[1], 16))
    return {"n": "\n", "r": "\r", "t": "\t"}.get(match[2], match[2])


def read_lines(log: Path) -> Iterator[bytes]:
    """Yield the lines of a log, unchanged except for their line ends."""
    with log.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n")


@dataclass(slots=True, kw_only=True)
class Report:
    """Result of the comparison."""

    lines: int = 0
    malformed: int = 0
    rows: int = 0
    quarantined: int = 0
    duplicates: int = 0
    missing: int = 0
    altered: int = 0
    not_produced: int = 0
    quarantine_differing: int = 0
    requests_per_client_differing: int = 0
    samples: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether every line took effect exactly once."""
        return not any(self._differences().values())

    @property
    def verdict(self) -> str:
        """The last printed line."""
        if self.exact:
            counts = f"({self.rows} rows, {self.quarantined} quarantined)"
            return f"EXACT: each of {self.lines} lines took effect exactly once {counts}"
        return "NOT EXACT: " + ", ".join(f"{name} {count}" for name, count in self._differences().items() if count)

    def _differences(self) -> dict[str, int]:
        return {
            "duplicates": self.duplicates,
            "missing": self.missing,
            "altered": self.altered,
            "not produced": self.not_produced,
            "quarantine differing": self.quarantine_differing,
            "requests_per_client differing": self.requests_per_client_differing,
        }

    def table(self) -> str:
        """The numbers as text."""
        numbers = {
            "lines produced": self.lines,
            "of these malformed": self.malformed,
            "rows in access_log": self.rows,
            "quarantined": self.quarantined,
            **self._differences(),
        }
        return "\n".join(f"{name:<30}{count:>12}" for name, count in numbers.items())

    def as_dict(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {"exact": self.exact, "verdict": self.verdict, **asdict(self)}

    def sample(self, text: str) -> None:
        """Keep an example, up to `SAMPLES`."""
        if len(self.samples) < SAMPLES:
            self.samples.append(text if len(text) <= 300 else f"{text[:297]}...")


class Comparison:
    """Takes the logs, then the rows of the target; afterwards `report` holds the differences.

    It keeps only a digest and a count of a certain line, so that a log of a million lines fits into memory. A line with
    an uncertain column is matched with the rows that no certain line accounts for.
    """

    def __init__(self, logs: Sequence[Path]) -> None:
        self.report = Report()
        self._logs = logs
        self._sure: Counter[bytes] = Counter()
        """Copies still to be found, by the digest of the row."""
        self._unsure: Counter[bytes] = Counter()
        """Copies still to be found, by the line."""
        self._alike: dict[Core, dict[bytes, Expected]] = defaultdict(dict)
        """The uncertain lines with one core."""
        self._malformed: Counter[bytes] = Counter()
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        for line in self._lines():
            self._produced(line)

    def _lines(self) -> Iterator[bytes]:
        for log in self._logs:
            yield from read_lines(log)

    def _produced(self, line: bytes) -> None:
        self.report.lines += 1
        expected = parse(line)
        if expected is None:
            self.report.malformed += 1
            self._malformed[line] += 1
            return
        self._requests[expected.client] += 1
        self._bytes[expected.client] += expected.size or 0
        if expected.sure:
            self._sure[_digest(expected.core, expected.texts)] += 1
        else:
            self._unsure[line] += 1
            self._alike[expected.core][line] = expected

    def rows(self, rows: Iterable[Row]) -> None:
        """Take the rows of ``access_log``, once."""
        unmatched: list[Row] = []
        for row in rows:
            self.report.rows += 1
            if not self._take(row):
                unmatched.append(row)
        missing = self._missing()
        # Pairing rows with lines only explains differences; it is skipped if nearly everything is wrong.
        pairable = len(unmatched) * len(missing) <= _PAIRINGS
        originals = {line: parsed for line in missing if pairable and (parsed := parse(line)) is not None}
        for row in unmatched:
            self._explain(row, missing, originals)
        for line, copies in missing.items():
            self.report.missing += copies
            self.report.sample(f"missing: {_show(line)}")

    def _take(self, row: Row) -> bool:
        digest = _digest(row[:4], row[4:])
        if self._sure[digest] > 0:
            self._sure[digest] -= 1
            return True
        for line, expected in self._alike.get(row[:4], {}).items():
            if self._unsure[line] > 0 and expected.matches(row[4:]):
                self._unsure[line] -= 1
                return True
        return False

    def _missing(self) -> Counter[bytes]:
        """Lines without a row, with the number of missing copies. Reads the log again if there are any."""
        missing, lacking = +self._unsure, +self._sure
        for line in self._lines() if lacking else ():
            expected = parse(line)
            if expected is not None and lacking[digest := _digest(expected.core, expected.texts)] > 0:
                lacking[digest] -= 1
                missing[line] += 1
        return missing

    def _explain(self, row: Row, missing: Counter[bytes], originals: dict[bytes, Expected]) -> None:
        alike = self._alike.get(row[:4], {}).values()
        if _digest(row[:4], row[4:]) in self._sure or any(expected.matches(row[4:]) for expected in alike):
            self.report.duplicates += 1
            self.report.sample(f"duplicate: {_show_row(row)}")
            return
        likeness = {line: _likeness(row, expected) for line, expected in originals.items()}
        original = max(likeness, key=likeness.__getitem__, default=None)
        if original is None or likeness[original] < 3:
            self.report.not_produced += 1
            self.report.sample(f"not produced: {_show_row(row)}")
            return
        missing[original] -= 1
        if not missing[original]:
            del missing[original], originals[original]
        self.report.altered += 1
        self.report.sample(f"altered: {_show(original)} became {_show_row(row)}")

    def quarantine(self, values: Iterable[bytes | None]) -> None:
        """Take the values of the quarantine, once."""
        quarantined, malformed = Counter(values), Counter[bytes | None](self._malformed)
        self.report.quarantined = quarantined.total()
        for line, copies in (malformed - quarantined).items():
            self.report.quarantine_differing += copies
            self.report.sample(f"malformed, not quarantined: {_show(line)}")
        for line, copies in (quarantined - malformed).items():
            self.report.quarantine_differing += copies
            why = "quarantined too often" if line in self._malformed else "quarantined, not malformed"
            self.report.sample(f"{why}: {_show(line)}")

    def clients(self, rows: Iterable[tuple[str, int | None, int | None]]) -> None:
        """Take the rows of ``requests_per_client``, once."""
        actual = {client: (requests, size) for client, requests, size in rows}
        expected = {client: (requests, self._bytes[client]) for client, requests in self._requests.items()}
        for client in sorted(expected.keys() | actual.keys()):
            if expected.get(client) != actual.get(client):
                self.report.requests_per_client_differing += 1
                sums = f"{actual.get(client)} instead of {expected.get(client)}"
                self.report.sample(f"requests_per_client {client}: {sums}")


def _digest(core: Core, texts: tuple[Value, ...]) -> bytes:
    return hashlib.blake2b(repr((*core, *texts)).encode(), digest_size=16).digest()


def _likeness(row: Row, expected: Expected) -> int:
    """How many of a line's five parts a row has: the core's four columns, and the texts together."""
    return sum(a == b for a, b in zip(expected.core, row[:4], strict=True)) + expected.matches(row[4:])


def _show(line: bytes | None) -> str:
    return "NULL" if line is None else line.decode(errors="backslashreplace")


def _show_row(row: Row) -> str:
    client, microseconds, *rest = row
    time = None if microseconds is None else (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
    return " | ".join("NULL" if value is None else str(value) for value in (client, time, *rest))


_ROWS = """
SELECT client, (extract(epoch FROM ts) * 1000000)::bigint, status, bytes,
       method, path, protocol, referrer, user_agent
FROM access_log WHERE %(topic)s IS NULL OR _topic = %(topic)s
"""
_QUARANTINE = """
SELECT value FROM epochline.quarantine
WHERE pipeline = %(pipeline)s AND (%(topic)s IS NULL OR topic = %(topic)s)
"""
_CLIENTS = "SELECT client, requests, bytes FROM requests_per_client"


def check(logs: Sequence[Path], connection: extensions.connection, topic: str | None = None) -> Report:
    """Compare logs with a target, which is read in one snapshot and not changed. A file named twice was produced twice.

    With a topic, only its rows and quarantined records are compared; `requests_per_client` has no topics.
    """

    def stream(query: str) -> Iterator[Any]:
        with connection.cursor("access_log_check") as cursor:
            cursor.itersize = 10_000
            cursor.execute(query, {"topic": topic, "pipeline": PIPELINE})
            yield from cursor

    comparison = Comparison(logs)
    connection.set_session(isolation_level=extensions.ISOLATION_LEVEL_REPEATABLE_READ, readonly=True)
    with connection:
        comparison.rows(stream(_ROWS))
        comparison.quarantine(None if value is None else bytes(value) for (value,) in stream(_QUARANTINE))
        comparison.clients(stream(_CLIENTS))
    return comparison.report


def main(arguments: list[str] | None = None) -> int:
    """Compare and print; see the module's first lines for exit codes."""
    parser = argparse.ArgumentParser(
        prog="access_log_check", description="Compare an access log with the tables that were made from it."
    )
    parser.add_argument("--log", type=Path, action="append", required=True, help="a produced log; repeatable")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--dsn", help="libpq connection string or URL, without a password")
    where.add_argument("--service", help="name of a service in PGSERVICEFILE or ~/.pg_service.conf")
    parser.add_argument("--topic", help="compare only records of this topic")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    try:
        dsn = options.dsn or extensions.make_dsn(service=options.service)
        if "password" in extensions.parse_dsn(dsn):
            raise PermissionError("every user can read a password on a command line; use PGPASSFILE or PGPASSWORD")
        for log in options.log:
            if not log.is_file():
                raise FileNotFoundError(f"{log} is not a file")
        with closing(psycopg2.connect(dsn, connect_timeout=10, application_name="access_log_check")) as connection:
            report = check(options.log, connection, options.topic)
    except (psycopg2.Error, OSError) as error:
        first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        print(f"access_log_check: {first}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        print("\n".join([report.table(), *(f"  {sample}" for sample in report.samples), report.verdict]))
    return 0 if report.exact else 1


if __name__ == "__main__":
    sys.exit(main())
