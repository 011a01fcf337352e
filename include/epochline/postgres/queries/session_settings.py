"""Settings that hold in a transaction because they are made in it.

A start-up parameter (``options``) is refused by some servers and dropped by some poolers, and a pooler in transaction
mode gives each transaction another session of the server: what was set for a session may be gone, or stay behind for
somebody else. ``SET LOCAL`` is neither. It takes no snapshot, so that an isolation level may still be chosen after it.
"""

from __future__ import annotations

from collections.abc import Mapping


def set_local(settings: Mapping[str, str | int]) -> str:
    """Statements that put settings in force for the transaction they are run in, in one message to the server.

    Args:
        settings: names and values of our own; times in milliseconds. Nothing that a user said.
    """
    return "; ".join(f"SET LOCAL {name} TO '{value}'" for name, value in settings.items())
