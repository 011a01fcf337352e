"""How numbers, durations and ranges are written for people: one form on every screen. Pure."""

from collections.abc import Iterable, Sequence

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
    found: list[list[int]] = []
    for one in sorted(set(numbers)):
        if found and one == found[-1][-1] + 1:
            found[-1].append(one)
        else:
            found.append([one])
    return ", ".join(_run(one) for one in found)


def _run(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def size(value: float) -> str:
    """Bytes in a unit in which they have at most four digits."""
    power = min((max(int(value), 1).bit_length() - 1) // 10, len(_BYTES) - 1)
    return f"{number(round(value / 1024**power, 1))} {_BYTES[power]}"
