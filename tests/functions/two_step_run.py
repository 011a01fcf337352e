"""How many rows the run has written: a variable, so that a restart begins at nothing."""

rows = 0


def restart() -> None:
    global rows
    rows = 0


def write_one() -> None:
    """The fault of the comparison of sinks (E6): ``count > 10`` before the row is counted, which is its twelfth."""
    global rows
    if rows > 10:
        raise RuntimeError("compare test exception.")
    rows += 1
