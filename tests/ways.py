"""The command that a message ends with, as a person reads it."""

import re


def way_on(text: str) -> str | None:
    """The command, without ``epochline``; None if the message ends with none."""
    found = re.search(r"To go on, run `epochline ([^`]+)`[.)]*$", text)
    return found[1] if found else None
