"""Numbers, durations and sizes as text for people: one format for the pages and the terminal. Pure."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float) -> str:
    """A number with commas between thousands. A fraction below 100 has two decimals, any other number has none."""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:,.2f}"


def duration(seconds: float) -> str:
    """Seconds in their largest unit and the next smaller one: ``59.9 s``, ``2 min 5 s``, ``3 d``."""
    whole = in_units(abs(seconds))
    return ("-" if seconds < 0 else "") + (f"{abs(seconds):.1f} s" if abs(seconds) < 59.95 else whole)


def in_units(seconds: float) -> str:
    """Whole seconds, which are not negative, in their largest unit and the next smaller one."""
    left, parts = round(seconds), []
    for size_of_unit, unit in _UNITS:
        count, left = divmod(left, size_of_unit)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def size(value: float) -> str:
    """Bytes in a unit in which they have at most four digits."""
    power = min((max(int(value), 1).bit_length() - 1) // 10, len(_BYTES) - 1)
    return f"{number(round(value / 1024**power, 1))} {_BYTES[power]}"
