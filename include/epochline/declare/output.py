"""How the ledger names what an epoch writes for a sink."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One sink of a pipeline, as staging, manifests and receipts know it.

    Args:
        name: of the sink, in receipts.
        staged_as: what manifests and parts call its rows: the name of a table, or of the sink if Spark writes it.
        shown_at_commit: whether the commit shows the rows. A publish shows those of the other sinks later.
    """

    name: str
    staged_as: str
    shown_at_commit: bool
