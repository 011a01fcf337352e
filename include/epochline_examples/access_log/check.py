"""Compares an access log with the tables of the pipeline `access_log`, without sharing code with the pipeline.

The log is parsed again in plain Python. Only a line without client, time, request, status and size in their places is
malformed, and so is one whose first field is not one client: a list of proxies, a virtual host before the client, a
client with a port. Each sound line must be in ``access_log`` as often as it is in the log, each malformed line must be
in the quarantine with its bytes, and ``requests_per_client`` must hold the sums. The target is read in one snapshot.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import extensions

PIPELINE = "access_log"
SAMPLES = 5
_PAIRINGS = 1_000_000

Value = str | frozenset[str] | None


class _Anything:
    """A column whose value does not follow from the line with certainty."""

    def __repr__(self) -> str:
        return "?"


ANYTHING = _Anything()

_LINE = re.compile(
    r'^(?P<client>[^\s\["]\S*) (?P<ident>\S+) (?P<user>.*? )?\[(?P<time>[^\]]*)\]'
    r' "(?:(?P<request>(?:[^"\\]|\\.)*)|(?P<rough>.*?))" (?P<status>[0-9]{3}) (?P<size>[0-9]+|-)(?P<tail>(?:\s.*)?)$',
    re.DOTALL,
)
_TIME = re.compile(r"^(\d\d)/([A-Za-z]{3})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)$", re.ASCII)
_TAIL = re.compile(r'^ "((?:[^"\\]|\\.)+)" "((?:[^"\\]|\\.)+)"$', re.DOTALL)
_REGULAR = re.compile(r"^([A-Z]+) (\S+) (HTTP/\d(?:\.\d)?)$", re.ASCII)
_NEARLY_REGULAR = re.compile(r"^\S+ .* [A-Za-z]+/\S*\s*$", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_MONTHS = {
    name: number
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), start=1)  # noqa: SIM905
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_BIGINT = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A sound line as the table must hold it.

    ``texts`` are method, path, protocol, referrer and user agent, each as a value, as a set of accepted values (escapes
    may be kept or resolved), or as `ANYTHING`.
    """

    client: str
    seconds: int
    status: int
    size: int | None
    texts: tuple[Value | _Anything, ...]

    @property
    def sure(self) -> bool:
        """Whether every column follows from the line with certainty."""
        return all(text is None or isinstance(text, str) for text in self.texts)

    @property
    def core(self) -> tuple[str | None, ...]:
        """The columns that follow from every sound line with certainty."""
        return _core(self.client, self.seconds * 1_000_000, self.status, self.size)

    def matches(self, texts: Sequence[str | None]) -> bool:
        """Whether a row with this core may be this line."""
        for wanted, found in zip(self.texts, texts, strict=True):
            if isinstance(wanted, _Anything):
                continue
            if found not in wanted if isinstance(wanted, frozenset) else found != wanted:
                return False
        return True


def _core(client: str | None, microseconds: int | None, status: int | None, size: int | None) -> tuple[str | None, ...]:
    return (client, *(None if number is None else str(number) for number in (microseconds, status, size)))


def parse(line: bytes) -> Expected | None:
    """Parse a line to its expected row; None if it is malformed."""
    match = _LINE.match(line.decode(errors="surrogateescape"))
    if match is None or not _one_client(match["client"], match["ident"], match["user"] or ""):
        return None
    seconds = _seconds(match["time"])
    size = None if match["size"] == "-" else int(match["size"])
    if seconds is None or (size or 0) > _MAX_BIGINT:
        return None
    return Expected(
        client=match["client"],
        seconds=seconds,
        status=int(match["status"]),
        size=size,
        texts=(*_request(match["request"]), *_tail(match["tail"].rstrip())),
    )


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
    month = month.title()
    if month not in _MONTHS or int(zone_minutes) > 59 or int(zone_hours) > 23:
        return None
    try:
        local = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
    offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
    return (local - (offset if sign == "+" else -offset) - _EPOCH) // timedelta(seconds=1)


def _request(request: str | None) -> tuple[Value | _Anything, ...]:
    if request is None:  # an unescaped quote inside: the end of the request is ambiguous
        return (ANYTHING, ANYTHING, ANYTHING)
    match = _REGULAR.match(request)
    if match is not None:
        return (match[1], _text(match[2]), match[3])
    if _NEARLY_REGULAR.match(request):  # such as a space in the path, a method in small letters
        return (ANYTHING, ANYTHING, ANYTHING)
    return (None, _text(request), None)


def _tail(tail: str) -> tuple[Value | _Anything, ...]:
    if not tail:
        return (None, None)
    match = _TAIL.match(tail)
    return (ANYTHING, ANYTHING) if match is None else (_text(match[1]), _text(match[2]))


def _text(text: str) -> Value | _Anything:
    if not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text):
        return ANYTHING  # not UTF-8: a text column cannot hold it unchanged
    if "\\" not in text:
        return text
    return frozenset({text, _ESCAPE.sub(_unescaped, text)})


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
class Sums:
    """One row of ``requests_per_client``."""

    requests: int = 0
    size: int = 0


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
            return (
                f"EXACT: each of {self.lines} lines took effect exactly once"
                f" ({self.rows} rows, {self.quarantined} quarantined)"
            )
        found = ", ".join(f"{name} {count}" for name, count in self._differences().items() if count)
        return f"NOT EXACT: {found}"

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


Row = tuple[str | None, int | None, int | None, int | None, str | None, str | None, str | None, str | None, str | None]
"""client, microseconds since 1970, status, bytes, method, path, protocol, referrer, user agent."""


@dataclass(slots=True)
class _Unsure:
    """A line with an uncertain column. It is matched with the rows that no certain line accounts for."""

    line: bytes
    expected: Expected
    copies: int = 1
    found: int = 0


class Comparison:
    """Takes the logs, then the rows of the target; afterwards `report` holds the differences.

    It keeps only a digest and a count of a certain line, so that a log of a million lines fits into memory.
    """

    def __init__(self, logs: Sequence[Path]) -> None:
        self.report = Report()
        self._logs = logs
        self._sure: Counter[bytes] = Counter()  # how many copies are still to be found
        self._unsure: dict[tuple[str | None, ...], dict[bytes, _Unsure]] = defaultdict(dict)
        self._malformed: Counter[bytes] = Counter()
        self._clients: dict[str, Sums] = defaultdict(Sums)
        for log in logs:
            for line in read_lines(log):
                self._produced(line)

    def _produced(self, line: bytes) -> None:
        self.report.lines += 1
        expected = parse(line)
        if expected is None:
            self.report.malformed += 1
            self._malformed[line] += 1
            return
        sums = self._clients[expected.client]
        sums.requests += 1
        sums.size += expected.size or 0
        if expected.sure:
            self._sure[_digest(expected.core, expected.texts)] += 1
            return
        twins = self._unsure[expected.core]
        if line in twins:
            twins[line].copies += 1
        else:
            twins[line] = _Unsure(line, expected)

    def rows(self, rows: Iterable[Row]) -> None:
        """Take the rows of ``access_log``, once."""
        left: list[Row] = []
        for row in rows:
            self.report.rows += 1
            if not self._take(row):
                left.append(row)
        missing = self._missing()
        # Pairing rows with lines only explains differences; it is skipped if nearly everything is wrong.
        pairable = len(left) * len(missing) <= _PAIRINGS
        originals = {line: parsed for line in missing if pairable and (parsed := parse(line)) is not None}
        for row in left:
            self._explain(row, missing, originals)
        for line, copies in missing.items():
            self.report.missing += copies
            self.report.sample(f"missing: {_show(line)}")

    def _take(self, row: Row) -> bool:
        core, texts = _core(*row[:4]), row[4:]
        digest = _digest(core, texts)
        if self._sure.get(digest, 0) > 0:
            self._sure[digest] -= 1
            return True
        for line in self._unsure.get(core, {}).values():
            if line.found < line.copies and line.expected.matches(texts):
                line.found += 1
                return True
        return False

    def _missing(self) -> Counter[bytes]:
        """Lines without a row, with the number of missing copies. Reads the log again if there are any."""
        unsure = (line for twins in self._unsure.values() for line in twins.values())
        missing = Counter({line.line: line.copies - line.found for line in unsure if line.found < line.copies})
        lacking = {digest: count for digest, count in self._sure.items() if count > 0}
        if lacking:
            for log in self._logs:
                for line in read_lines(log):
                    expected = parse(line)
                    if expected is None or not expected.sure:
                        continue
                    digest = _digest(expected.core, expected.texts)
                    if lacking.get(digest, 0) > 0:
                        lacking[digest] -= 1
                        missing[line] += 1
        return missing

    def _explain(self, row: Row, missing: Counter[bytes], originals: dict[bytes, Expected]) -> None:
        core, texts = _core(*row[:4]), row[4:]
        alike = (line.expected for line in self._unsure.get(core, {}).values())
        if _digest(core, texts) in self._sure or any(expected.matches(texts) for expected in alike):
            self.report.duplicates += 1
            self.report.sample(f"duplicate: {_show_row(row)}")
            return
        original = _original(row, originals)
        if original is None:
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
        found = {client: (requests, size) for client, requests, size in rows}
        for client in sorted(self._clients.keys() | found.keys()):
            sums = self._clients.get(client)
            wanted = None if sums is None else (sums.requests, sums.size)
            if wanted != found.get(client):
                self.report.requests_per_client_differing += 1
                self.report.sample(f"requests_per_client {client}: {found.get(client)} instead of {wanted}")


def _digest(core: Sequence[str | None], texts: Sequence[object]) -> bytes:
    # No column can hold NUL, so NUL can separate columns and, alone, mean NULL.
    whole = "\0\0".join("\0" if value is None else str(value) for value in (*core, *texts))
    return hashlib.blake2b(whole.encode(errors="surrogateescape"), digest_size=16).digest()


def _original(row: Row, missing: Mapping[bytes, Expected]) -> bytes | None:
    """The missing line from which this row was most likely made: at most two of its five parts may differ."""
    core, texts = _core(*row[:4]), row[4:]
    alike = {
        line: sum(a == b for a, b in zip(expected.core, core, strict=True)) + expected.matches(texts)
        for line, expected in missing.items()
    }
    best = max(alike, key=alike.__getitem__, default=None)
    return best if best is not None and alike[best] >= 3 else None


def _show(line: bytes | None) -> str:
    return "NULL" if line is None else line.decode(errors="backslashreplace")


def _show_row(row: Row) -> str:
    client, microseconds, *rest = row
    time = "NULL" if microseconds is None else (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
    return " | ".join(("NULL" if value is None else str(value)) for value in (client, time, *rest))


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
    comparison = Comparison(logs)
    connection.set_session(isolation_level=extensions.ISOLATION_LEVEL_REPEATABLE_READ, readonly=True)
    with connection:
        parameters = {"topic": topic, "pipeline": PIPELINE}
        comparison.rows(_stream(connection, "rows", _ROWS, parameters))
        comparison.quarantine(
            None if value is None else bytes(value)
            for (value,) in _stream(connection, "quarantine", _QUARANTINE, parameters)
        )
        comparison.clients(_stream(connection, "clients", _CLIENTS, parameters))
    return comparison.report


def _stream(
    connection: extensions.connection, name: str, query: str, parameters: dict[str, str | None]
) -> Iterator[Any]:
    with connection.cursor(f"access_log_check_{name}") as cursor:
        cursor.itersize = 10_000
        cursor.execute(query, parameters)
        yield from cursor


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
        report = _run(options.log, options.dsn or extensions.make_dsn(service=options.service), options.topic)
    except (_UsageError, psycopg2.Error, OSError) as error:
        first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        print(f"access_log_check: {first}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        print(report.table())
        for sample in report.samples:
            print(f"  {sample}")
        print(report.verdict)
    return 0 if report.exact else 1


class _UsageError(Exception):
    pass


def _run(logs: Sequence[Path], dsn: str, topic: str | None) -> Report:
    if "password" in extensions.parse_dsn(dsn):
        raise _UsageError("every user can read a password on a command line; use PGPASSFILE or PGPASSWORD")
    for log in logs:
        if not log.is_file():
            raise _UsageError(f"{log} is not a file")
    with closing(psycopg2.connect(dsn, connect_timeout=10, application_name="access_log_check")) as connection:
        return check(logs, connection, topic)


if __name__ == "__main__":
    sys.exit(main())
