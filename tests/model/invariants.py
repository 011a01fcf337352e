"""What must hold in every state and over every step (INV-1 to INV-8; I1, I2, I6, I7)."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from epochline.protocol.epoch import NEXT, UNFINISHED, EpochState
from tests.chains import chain_breaks
from tests.in_memory.rows import Rows
from tests.model.tables import NAME, STATE, Reads, Violation


def check_rows(rows: Rows) -> None:
    """Hold the tables of one state against the invariants."""
    for problem in _problems(rows):
        raise Violation(problem)


def _problems(rows: Rows) -> Iterator[str]:
    target: Any = rows.targets["target"]
    visible = Counter((partition, offset) for partition, offset, _ in target)
    yield from _problems_of_state(rows)
    committed: Counter[tuple[int, int]] = Counter()
    for (_, _, tp), links in rows.chains.items():
        for broken in chain_breaks([(start, until) for start, until, _ in links]):
            yield f"INV-1: {tp}: {broken}"
        for start, until, epoch_id in links:
            if start is None or epoch_id is None:
                continue
            committed.update((tp.partition, offset) for offset in range(start, until))
            if rows.epochs[NAME, epoch_id].state is not EpochState.COMMITTED:
                yield f"INV-7: {tp}: epoch {epoch_id} moved the head and is not committed"
    for record, times in (visible | committed).items():
        if visible[record] != committed[record]:
            yield (
                f"INV-2: record {record[0]}@{record[1]} is {visible[record]} times in the target and {committed[record]}"
                f" times below a head ({times})"
            )
        elif times > 1:
            yield f"INV-1: record {record[0]}@{record[1]} took effect {times} times"
    unfinished = [epoch for epoch in rows.epochs.values() if epoch.state in UNFINISHED]
    if len(unfinished) > 1:
        yield f"two unfinished epochs: {unfinished[0]}, {unfinished[1]}"
    for key, epoch in rows.epochs.items():
        own = [row for row in rows.attempts.values() if (row.attempt.pipeline, row.attempt.epoch_id) == key]
        live = [row for row in own if not row.attempt.fenced]
        if len(live) > 1:
            yield f"INV-4: {epoch} has two live attempts"
        if epoch.state is EpochState.PRE_COMMITTED and not (live and live[0].attempt.sealed and not live[0].dropped):
            yield f"INV-5: {epoch} is pre-committed and its sealed staging was dropped"
        if epoch.state is EpochState.ABORTED and live:
            yield f"INV-7: {epoch} is aborted and {live[0].attempt} is not fenced"
        if epoch.state in (EpochState.PLANNED, EpochState.ABORTED) and any(row.attempt.sealed for row in live):
            yield f"{epoch} is {epoch.state} and has a sealed attempt"


def _problems_of_state(rows: Rows) -> Iterator[str]:
    """INV-2, S14: every committed epoch went on from the state that the one before it left, and left its own."""
    if STATE not in rows.targets:
        return
    states: Any = rows.targets[STATE]
    written = sorted((epoch_id, held) for held, epoch_id in states)
    committed = sorted(key[1] for key, epoch in rows.epochs.items() if epoch.state is EpochState.COMMITTED)
    if [epoch_id for epoch_id, _ in written] != committed:
        yield f"INV-2: epochs {committed} are committed, and state was written by {[one for one, _ in written]}"
    for (before, _), (epoch_id, held) in pairwise([(0, 0), *written]):
        if held != before:
            yield f"S14: epoch {epoch_id} went on from the state of epoch {held}, not of {before}"


def check_change(before: Rows, after: Rows, *, by_operator: bool) -> None:
    """Hold one transaction against the table of transitions and the promises about what stays."""
    for key, old in before.epochs.items():
        new = after.epochs[key]
        if old.state is not new.state and new.state not in NEXT[old.state]:
            raise Violation(f"{old}: {old.state} became {new.state}")
        if old.state is EpochState.COMMITTED and old != new:
            raise Violation(f"INV-5: {old} was committed and changed")
        if before.ranges[key] != after.ranges[key]:
            raise Violation(f"INV-3: the range of {old} changed")
        if old.state is EpochState.PRE_COMMITTED and new.state is EpochState.ABORTED and not by_operator:
            sealed = [row for row in before.attempts.values() if row.attempt.epoch_id == old.epoch_id]
            live = next(row for row in sealed if not row.attempt.fenced)
            if all(staged.table in before.staging for staged in live.tables):
                raise Violation(f"INV-6: {old} was sealed, its staging is there, and nobody decided to abort it")
    committed_now = set()
    if len(after.epochs) == len(before.epochs):
        committed_now = {
            epoch.epoch_id
            for key, epoch in after.epochs.items()
            if epoch.state is EpochState.COMMITTED and before.epochs[key].state is not EpochState.COMMITTED
        }
    for chain, links in after.chains.items():
        old_links = before.chains.get(chain)
        if old_links is None:
            continue
        if links[: len(old_links)] != old_links:
            raise Violation(f"INV-1: what was committed of {chain[2]} changed")
        if any(link[2] not in committed_now for link in links[len(old_links) :]):
            raise Violation(f"INV-2: the head of {chain[2]} moved without its epoch's commit")
    for attempt_id, old_row in before.attempts.items():
        if old_row.attempt.fenced and not after.attempts[attempt_id].attempt.fenced:
            raise Violation(f"INV-4: {old_row.attempt} was fenced and lives again")


def check_reads(rows: Rows, attempt_id: int, reads: Reads) -> None:
    """An attempt reads the range that the ledger holds (INV-3)."""
    attempt = rows.attempts[attempt_id].attempt
    planned = rows.ranges[attempt.pipeline, attempt.epoch_id]
    if reads != tuple((one.tp.partition, one.range.start, one.range.until) for one in planned):
        raise Violation(f"INV-3: {attempt} reads {reads}, planned was {', '.join(map(str, planned))}")
