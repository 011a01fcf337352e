"""For tests of pipelines: what values parse to, and whole epochs on a real PostgreSQL, without Kafka.

pytest finds the fixture `run_epoch` by the plugin. Each name is imported when it is first asked for: other tests of an
environment with Epochline do not pay for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochline.testing.epochs import EpochResult, EpochRunner
    from epochline.testing.records import Record
    from epochline.testing.values import parse_values

__all__ = ["EpochResult", "EpochRunner", "Record", "parse_values"]

_MODULE_OF = {"EpochResult": "epochs", "EpochRunner": "epochs", "Record": "records", "parse_values": "values"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
