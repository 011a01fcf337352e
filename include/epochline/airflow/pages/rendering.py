"""Templates, and how they write numbers, times and durations."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from epochline.airflow.pages import charts
from epochline.airflow.pages.charts import rates, time_to_loss
from epochline.airflow.pages.views import MOST_COUNTED
from epochline.declare.names import QUARANTINE, sink_uri
from epochline.protocol import quantities
from epochline.protocol.failures import folded

_NARROW_SPACE = "\u202f"
_NOTHING = "\u2013"
_DURATIONS = ("interval", "minimum_pause", "target_duration", "timeout")
_OUTSIDE_AIRFLOW = ("cli", "operator")
"""What stands for the DAG of a run that Airflow does not know: of the command line, and of a restore."""


def number(value: float | None) -> str:
    """A number, or a dash if the value is missing."""
    return _NOTHING if value is None else quantities.number(value)


def duration(seconds: float | None) -> str:
    """Seconds, on one line; a dash if there are none."""
    return _NOTHING if seconds is None else _on_one_line(quantities.duration(seconds))


def size(value: float | None) -> str:
    """Bytes, on one line; a dash if there are none."""
    return _NOTHING if value is None else _on_one_line(quantities.size(value))


def _on_one_line(text: str) -> str:
    return text.replace(" ", _NARROW_SPACE)


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
    distance = _on_one_line(quantities.duration(round(abs(passed))))
    return _time(moment, f"{distance} ago" if passed > -1 else f"in {distance}")


def clock(moment: datetime) -> Markup:
    """A moment on the axis of a chart, in UTC: month, day, hour and minute."""
    return _time(moment, moment.astimezone(UTC).strftime("%m-%d %H:%M"))


def _time(moment: datetime, text: str) -> Markup:
    absolute = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    # Nothing in it needs escaping, and a page has hundreds of moments and numbers.
    return Markup(f'<time datetime="{moment.isoformat()}" title="{absolute}">{text}</time>')  # noqa: S704


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
_TEMPLATES.filters.update(number=number, duration=duration, ago=ago, clock=clock, part=path_part, size=size)
_TEMPLATES.globals.update(charts=charts, most_counted=MOST_COUNTED, rates=rates, time_to_loss=time_to_loss)
_TEMPLATES.globals.update(asset_uri=sink_uri, quarantine=QUARANTINE, setting=setting, folded=folded, figure=figure)
_TEMPLATES.globals.update(runs=quantities.runs, nothing=_NOTHING, outside_airflow=_OUTSIDE_AIRFLOW)


def page(template: str, path: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from a template. ``path`` is that of the request within the pages, such as ``/pipelines/orders``.

    Addresses in the page are relative to the path, so that a proxy in front of Airflow may add a prefix.
    """
    base = "../" * (path.count("/") - 1) or "./"
    now = datetime.now(UTC)
    shown: Mapping[str, Any] = {**values, "base": base, "now": now, "day_ago": now - timedelta(days=1)}
    return HTMLResponse(_TEMPLATES.get_template(template).render(shown), status_code=status)
