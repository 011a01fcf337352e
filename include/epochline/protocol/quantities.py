"""How numbers, durations, ranges and bytes are written for people: one form on every screen. Pure."""

from collections.abc import Iterable, Iterator

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float) -> str:
    """A number with commas between thousands: ``1,234`` or ``0.25``. A whole number has no decimals."""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:,.2f}"


def counted(value: int, one: str, many: str | None = None) -> str:
    """A number and what is counted: ``1 record``, ``1,234 records``."""
    return f"{number(value)} {one if value == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    """Seconds in their largest unit and the next smaller one, as ``3 min 20 s``; below a minute as ``4.2 s``."""
    sign, left = "-" if seconds < 0 else "", abs(seconds)
    if left < 59.95:
        return f"{sign}{left:.1f} s".replace(".0 s", " s")
    return sign + _in_units(round(left))


def _in_units(seconds: int) -> str:
    left, parts = seconds, []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{number(count)} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def runs(numbers: Iterable[int]) -> str:
    """Whole numbers with their runs shortened: ``0-3, 7``."""
    groups: list[list[int]] = []
    for value in sorted(set(numbers)):
        if groups and value == groups[-1][-1] + 1:
            groups[-1].append(value)
        else:
            groups.append([value])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in groups)


def size(value: float) -> str:
    """Bytes in a unit in which they have at most four digits."""
    power = min((max(int(value), 1).bit_length() - 1) // 10, len(_BYTES) - 1)
    return f"{number(round(value / 1024**power, 1))} {_BYTES[power]}"


_HEX_BYTES = 16


def on_one_line(content: bytes) -> str:
    """Bytes as UTF-8. Bytes that are no text, line ends and other characters that do not print are escaped."""
    text = content.decode("utf-8", "backslashreplace")
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def hex_lines(content: bytes) -> Iterator[str]:
    """Bytes in hex, 16 a line, each line with its offset and with the bytes that are ASCII."""
    for start in range(0, len(content), _HEX_BYTES):
        line = content[start : start + _HEX_BYTES]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{start:08x}  {line.hex(' '):<{3 * _HEX_BYTES - 1}}  {seen}"
