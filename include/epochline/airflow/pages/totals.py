"""What all epochs of each pipeline add up to, although the ledger keeps no totals: each epoch is read once.

An epoch before the last committed one never changes, so its figures are kept here with those before it. Every API
server counts to the same total, also after a restart, which so never looks like a counter that began anew.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from epochline.airflow.reading import Snapshot

COUNTED = {
    "committed": "epochs_committed",
    "aborted": "epochs_aborted",
    "retries": "retries",
    "records": "records",
    "skipped": "records_skipped",
    "quarantined": "records_quarantined",
    "too_late": "records_too_late",
    "rows": "rows_written",
}
"""The columns of the statement ``metrics_sums`` that are added, and the counter of each."""

_MOST = 50_000
"""Epochs of all pipelines that one statement adds."""

_SECONDS = 4.0
"""A scrape reads epochs for so long. A pipeline with more of them has no totals yet; the next scrape goes on."""


@dataclass(frozen=True, slots=True)
class _Settled:
    """The sums of a pipeline's epochs up to one that is committed."""

    epoch_id: int = 0
    committed_at: datetime | None = None
    sums: Counter[str] = field(default_factory=Counter)


_settled: dict[tuple[str, str], _Settled] = {}
"""By the ledger's address and the pipeline. Two scrapes at once keep the same values."""


def totals(dsn: str, ledger: Snapshot, pipelines: Sequence[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """The totals of the given pipelines, by name; of those whose epochs all could be read in time.

    Args:
        dsn: where the ledger is.
        ledger: a snapshot of it.
        pipelines: rows of ``page_pipelines``.
    """
    left = {row["pipeline"]: row["committed_epoch"] or 0 for row in pipelines}
    found: dict[str, Counter[str]] = {}
    until = time.monotonic() + _SECONDS
    while left and time.monotonic() < until:
        known = {name: _settled.get((dsn, name), _Settled()) for name in left}
        most = _MOST // len(left) + 1
        rows = ledger.ask(
            "metrics_sums", pipelines=list(left), behind=[one.epoch_id for one in known.values()],
            at=[one.committed_at for one in known.values()], last=list(left.values()), most=most,
        ).rows  # fmt: skip
        for name, settled in known.items():
            of_one = [row for row in rows if row["pipeline"] == name]
            if not of_one[0]["is_known"]:
                # The ledger was restored: another epoch has the number of the one up to which was added.
                _settled.pop((dsn, name), None)
                continue
            sums, read = settled.sums.copy(), [row for row in of_one if row["epochs"]]
            for row in read:
                sums.update({key: row[key] for key in COUNTED})
                if row["is_settled"]:
                    _settled[dsn, name] = _Settled(row["until"], row["committed_at"], sums.copy())
            is_whole = sum(row["epochs"] for row in read) < most
            if is_whole:
                found[name] = Counter(dict.fromkeys(COUNTED, 0) | sums)
            if is_whole or not read[0]["is_settled"]:
                del left[name]
    return found
