"""Settings for one transaction, made in the transaction itself.

Some servers refuse start-up parameters (``options``), and some poolers drop them. A pooler in transaction mode gives
each transaction another session, so that a setting of the session may be lost or may leak to another client. ``SET
LOCAL`` avoids both. It takes no snapshot, so an isolation level can still be chosen after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochline.declare.text_settings import TEXT_SETTINGS


def set_local(settings: Mapping[str, str | int]) -> str:
    """Statements that make settings for the current transaction; the server gets them in one message.

    `TEXT_SETTINGS` are always among them.

    Args:
        settings: names and values, which must not come from users; times in milliseconds.
    """
    made = {**TEXT_SETTINGS, **settings}
    return "; ".join(f"SET LOCAL {name} TO '{value}'" for name, value in made.items())
