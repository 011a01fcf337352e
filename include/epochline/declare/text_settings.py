"""The settings of PostgreSQL that change how it reads or writes a value; every session makes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT_SETTINGS: Mapping[str, str | int] = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "timezone_abbreviations": "Default",
    "bytea_output": "hex",
    # The shortest text that is read back as the same floating-point number.
    "extra_float_digits": 1,
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "xmlbinary": "base64",
    "xmloption": "content",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
}
"""Each is one that any login may set. ``client_encoding`` belongs to the connection, because the driver must know it:
see `UTF8`. Only a superuser may set ``lc_messages``."""

UTF8: Mapping[str, Any] = {"client_encoding": "UTF8"}
"""An option of every connection. It precedes the defaults of database and role."""
