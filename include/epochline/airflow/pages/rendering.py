"""Templates, and how they write numbers, times and durations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from epochline.airflow.pages import charts
from epochline.airflow.pages.flow import rates, time_to_loss
from epochline.airflow.pages.views import MOST_COUNTED
from epochline.declare.names import QUARANTINE, sink_uri

_NARROW_SPACE = "\u202f"
_NOTHING = "\u2013"
_MINUS = "\u2212"
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_DURATIONS = ("interval", "minimum_pause", "target_duration", "timeout")
_OUTSIDE_AIRFLOW = ("cli", "operator")
"""What stands for the DAG of a run that Airflow does not know: of the command line, and of a restore."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def number(value: float | None) -> str:
    """A number with narrow spaces between thousands. A missing number is a dash."""
    if value is None:
        return _NOTHING
    whole = f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:,.2f}"
    return whole.replace(",", _NARROW_SPACE)


def duration(seconds: float | None) -> str:
    """Seconds in their largest unit and the next smaller one; a dash if there are none."""
    if seconds is None:
        return _NOTHING
    sign = _MINUS if seconds < 0 else ""
    return sign + (f"{abs(seconds):.1f}{_NARROW_SPACE}s" if abs(seconds) < 59.95 else _in_units(abs(seconds)))


def _in_units(seconds: float) -> str:
    """Whole seconds in their largest unit and the next smaller one."""
    left, parts = round(seconds), []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{_NARROW_SPACE}{unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or f"0{_NARROW_SPACE}s"


def size(value: float | None) -> str:
    """Bytes in a unit in which they have at most four digits."""
    if value is None:
        return _NOTHING
    power = min((max(int(value), 1).bit_length() - 1) // 10, len(_BYTES) - 1)
    return f"{number(round(value / 1024**power, 1))}{_NARROW_SPACE}{_BYTES[power]}"


def setting(name: str, value: str | None) -> str:
    """A recorded setting: a duration, a number, or its text."""
    if value is None:
        return _NOTHING
    if name in _DURATIONS and _is_number(value):
        return duration(float(value))
    return number(float(value)) if _is_number(value) else value


def _is_number(value: str) -> bool:
    return value.replace(".", "", 1).isdigit()


def ago(moment: datetime | None) -> str | Markup:
    """How long ago a moment was, with the moment itself on hover. A missing moment is a dash."""
    if moment is None:
        return _NOTHING
    passed = (datetime.now(UTC) - moment).total_seconds()
    said = f"{_in_units(passed)} ago" if passed > -1 else f"in {_in_units(-passed)}"
    absolute = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    # Nothing in it needs escaping, and a page has hundreds of moments and numbers.
    return Markup(f'<time datetime="{moment.isoformat()}" title="{absolute}">{said}</time>')  # noqa: S704


def figure(text: str, href: str) -> str | Markup:
    """A number as a link to what made it. A missing number is a dash, which leads nowhere."""
    if text == _NOTHING:
        return text
    return Markup(f'<a class="figure" href="{escape(href)}">{escape(text)}</a>')  # noqa: S704 - escaped


def path_part(value: object) -> str:
    """A value as one part of a URL's path."""
    return quote(str(value), safe="")


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(number=number, duration=duration, ago=ago, part=path_part, size=size)
_TEMPLATES.globals.update(charts=charts, most_counted=MOST_COUNTED, rates=rates, time_to_loss=time_to_loss)
_TEMPLATES.globals.update(asset_uri=sink_uri, quarantine=QUARANTINE, setting=setting)
_TEMPLATES.globals.update(figure=figure, nothing=_NOTHING, outside_airflow=_OUTSIDE_AIRFLOW)


def page(template: str, path: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from a template.

    Args:
        template: the name of its file.
        path: of the request within the pages, such as ``/pipelines/orders``; addresses in the page are relative to it,
            so that a proxy in front of Airflow may add a prefix.
        status: of the answer.
        values: for the template.
    """
    base = "../" * (path.count("/") - 1) or "./"
    now = datetime.now(UTC)
    shown: Mapping[str, Any] = {**values, "base": base, "now": now, "day_ago": now - timedelta(days=1)}
    return HTMLResponse(_TEMPLATES.get_template(template).render(shown), status_code=status)
