"""Makes an access log that looks like a real one, the same for the same seed.

Lines are in NCSA Combined Log Format, some in Common Log Format, in UTF-8. One of `ODD_EVERY` lines is odd but sound
(`ODD`). One of `MALFORMED_EVERY` lines lacks client, time, request, status or size in its place (`MALFORMED`). So a
long log has every kind of line, and 10,000 lines have 25 malformed ones.

    python -m epochline_examples.access_log.maker --lines 10000 --seed 7 --out access.log
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import accumulate
from pathlib import Path
from random import Random

ODD_EVERY = 25
"""Lines per odd but sound line."""
MALFORMED_EVERY = 400
"""Lines per malformed line."""

_BEGIN = datetime(2015, 5, 17, 10, 5, tzinfo=UTC)
_SPAN = timedelta(days=4)
_ZONES = tuple(timezone(timedelta(minutes=minutes)) for minutes in (0, 0, 0, 0, 0, 0, 120, -420, 330, -210, 345))
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_CLIENTS = 600
_METHODS = ("GET",) * 30 + ("POST", "POST", "HEAD", "OPTIONS", "PUT", "DELETE")
_PROTOCOLS = ("HTTP/1.1",) * 8 + ("HTTP/1.0", "HTTP/2.0")
_STATUSES = ("200",) * 18 + ("304", "304", "206", "301", "404", "404", "403", "500")
_WORDS: Mapping[str, list[str]] = tomllib.loads(Path(__file__).with_name("words.toml").read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The parts of a line, as text; ``tail`` is the rest after the size."""

    client: str
    user: str
    time: str
    request: str
    status: str
    size: str
    tail: str

    def __str__(self) -> str:
        return f'{self.client} - {self.user} [{self.time}] "{self.request}" {self.status} {self.size}{self.tail}'


def lines(count: int, seed: int) -> Iterator[bytes]:
    """Yield the lines of the log, without line ends. The same count and seed give the same bytes on every machine."""
    rng = Random(seed)  # noqa: S311 - a log, not a secret
    clients = [_client(rng) for _ in range(_CLIENTS)]
    weights = list(accumulate(1 / rank for rank in range(1, _CLIENTS + 1)))
    odd = _schedule(rng, count, ODD_EVERY, list(ODD))
    malformed = _schedule(rng, count, MALFORMED_EVERY, list(MALFORMED))
    step = _SPAN / max(count, 1)
    for number in range(count):
        # The log's time advances evenly; each line's time is a little before or after it.
        at = _BEGIN + step * number + timedelta(seconds=rng.uniform(-20, 20))
        line = _regular(rng, rng.choices(clients, cum_weights=weights)[0], at)
        if number in malformed:
            text = MALFORMED[malformed[number]](rng, line)
        elif number in odd:
            text = str(ODD[odd[number]](rng, line))
        else:
            text = str(line)
        yield text.encode()


def _schedule(rng: Random, count: int, every: int, kinds: list[str]) -> dict[int, str]:
    """Choose one line number of every ``every`` lines, with the kinds in turn."""
    chosen = (first + rng.randrange(every) for first in range(0, count, every))
    return {number: kinds[turn % len(kinds)] for turn, number in enumerate(chosen)}


def _client(rng: Random) -> str:
    kind = rng.random()
    octets = [str(rng.randint(1, 254)) for _ in range(4)]
    if kind < 0.12:
        return f"host-{'-'.join(octets)}.{rng.choice(_WORDS['domains'])}"
    if kind < 0.2:
        return f"2001:db8:{rng.randrange(65536):x}::{rng.randrange(1, 65536):x}"
    return ".".join(octets)


def _time(at: datetime) -> str:
    # Not strftime("%b"), which depends on the locale.
    return f"{at.day:02}/{_MONTHS[at.month - 1]}/{at.year}:{at:%H:%M:%S} {at:%z}"


def _path(rng: Random) -> str:
    folder, name = rng.choice(_WORDS["folders"]), rng.choice(_WORDS["names"])
    path = f"/{folder}/{name}-{rng.randrange(100_000)}{rng.choice(_WORDS['endings'])}"
    if rng.random() < 0.3:
        path += f"?page={rng.randrange(1000)}&q=%E2%82%AC{rng.randrange(100_000)}"
    return path


def _regular(rng: Random, client: str, at: datetime) -> Line:
    status = rng.choice(_STATUSES)
    referrer = "-" if rng.random() < 0.4 else rng.choice(_WORDS["referrers"]) + str(rng.randrange(10_000))
    return Line(
        client=client,
        user="frank" if rng.random() < 0.02 else "-",
        time=_time(at.astimezone(rng.choice(_ZONES))),
        request=f"{rng.choice(_METHODS)} {_path(rng)} {rng.choice(_PROTOCOLS)}",
        status=status,
        size="-" if status == "304" else str(rng.randrange(40, 250_000)),
        tail=f' "{referrer}" "{rng.choice(_WORDS["agents"])}"',
    )


def _garbage(rng: Random) -> str:
    return r"\x16\x03" + "".join(f"\\x{rng.randrange(256):02X}" for _ in range(rng.randint(4, 12)))


def _agent(line: Line, agent: str) -> Line:
    referrer = line.tail.split('"')[1]
    return replace(line, tail=f' "{referrer}" "{agent}"')


ODD: Mapping[str, Callable[[Random, Line], Line]] = {
    "common log format": lambda _rng, line: replace(line, tail=""),
    "size is a dash": lambda _rng, line: replace(line, size="-"),
    "empty request": lambda _rng, line: replace(line, request="", status="408", size="-"),
    "request is a dash": lambda _rng, line: replace(line, request="-", status="408"),
    "garbage request": lambda rng, line: replace(line, request=_garbage(rng), status="400"),
    "no protocol": lambda rng, line: replace(line, request=f"GET {_path(rng)}"),
    "escaped quotes in the agent": lambda rng, line: _agent(
        line, rf"Frank's \"{rng.choice(_WORDS['names'])}\" reader/1.0"
    ),
    "agent in other scripts": lambda rng, line: _agent(line, f"Обозреватель/{rng.randrange(10)}.0 (浏览器; café; 🦊)"),
    "escaped bytes in the referrer": lambda rng, line: replace(
        line, tail=rf' "http://\xe4\xe5\xe3\xf2{rng.randrange(1000)}.example/" "Mozilla/5.0"'
    ),
    "agent without closing quote": lambda _rng, line: replace(line, tail=line.tail.removesuffix('"')),
    "common log format, garbage request": lambda rng, line: replace(
        line, request=_garbage(rng), status="400", size="-", tail=""
    ),
}
"""Odd lines that must be kept, by description."""


def _cut(rng: Random, line: Line, before: str) -> str:
    """Cut the line off somewhere in the part that ends with ``before``."""
    whole = str(line)
    end = whole.index(before) + len(before) - 1
    return whole[: max(1, end - rng.randint(0, 6))]


MALFORMED: Mapping[str, Callable[[Random, Line], str]] = {
    "cut off in the time": lambda rng, line: _cut(rng, line, "]"),
    "cut off in the request": lambda rng, line: _cut(rng, line, f'" {line.status} '),
    "cut off after the status": lambda _rng, line: str(replace(line, size="", tail="")).rstrip(),
    "JSON": lambda rng, line: json.dumps({"client": line.client, "status": 200, "id": rng.randrange(10**9)}),
    "blank": lambda rng, _line: "".join(rng.choice(" \t") for _ in range(rng.randint(20, 40))),
    "status is a word": lambda _rng, line: str(replace(line, status="abc")),
    "no status": lambda _rng, line: str(line).replace(f'" {line.status} ', '" ', 1),
    "impossible day and month": lambda _rng, line: str(replace(line, time=f"32/Foo/2015{line.time[11:]}")),
    "day that the month does not have": lambda _rng, line: str(replace(line, time=f"30/Feb/2015{line.time[11:]}")),
    "impossible hour": lambda _rng, line: str(replace(line, time=f"{line.time[:12]}25{line.time[14:]}")),
    "size is a word": lambda rng, line: str(replace(line, size=f"{rng.randrange(1000)}kB")),
    "no client": lambda _rng, line: str(line).removeprefix(f"{line.client} - {line.user} "),
    "no request": lambda _rng, line: str(line).replace(f' "{line.request}"', "", 1),
    "words": lambda rng, _line: f"-- log rotated by pid {rng.randrange(10**7)} --",
}
"""Lines that must be quarantined, by description."""


def main(arguments: list[str] | None = None) -> int:
    """Write a log to a file, or to standard output."""
    parser = argparse.ArgumentParser(
        prog="access_log_maker", description="Make an access log, the same for the same seed."
    )
    parser.add_argument("--lines", type=int, default=10_000, help="number of lines (default: 10000)")
    parser.add_argument("--seed", type=int, default=7, help="seed of the log (default: 7)")
    parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
    options = parser.parse_args(arguments)
    if options.lines < 0:
        parser.error("--lines must not be negative")
    if options.out is None:
        for line in lines(options.lines, options.seed):
            sys.stdout.buffer.write(line + b"\n")
        return 0
    try:
        with options.out.open("wb") as out:
            out.writelines(line + b"\n" for line in lines(options.lines, options.seed))
    except OSError as error:
        print(f"access_log_maker: {options.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
