"""Differences between two declarations of a pipeline, and the effect of each. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter


class Effect(enum.StrEnum):
    """When or whether a change takes effect."""

    NEXT_EPOCH = "next epoch"
    MIGRATION = "needs migration"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed field: its former value, its new value and the effect."""

    field: str
    before: Any
    now: Any
    effect: Effect
    advice: str = ""


_KEPT = "existing rows were written by the old one; declare another table, or another pipeline"
_TABLE = "run `epochline migrate`, which creates missing tables; add a column by ALTER TABLE"
_ALTER = "`epochline migrate` alters no column; ALTER TABLE first, then run again"
_DURATION = TypeAdapter(timedelta)
_GROUPS = frozenset({"sinks", "state"})
_POST_COMMIT = {"topic": "kafka", "path": "files", "sink": "own"}
_OUTBOX = "the outbox needs other columns: publish all epochs, drop its table, run `epochline migrate`"
_UNMARKED = "no marker says which epochs were sent at least once; give the rows another topic"
_SINK: Mapping[str, tuple[Effect, str]] = {
    "mode": (Effect.REFUSED, _KEPT),
    "key": (Effect.REFUSED, _KEPT),
    "measures": (Effect.MIGRATION, _ALTER),
    "order_by": (Effect.MIGRATION, "the table needs the _order_ columns; without them order holds within an epoch"),
    "lineage": (Effect.MIGRATION, "the table must have the _ columns, or none of them"),
    "aggregated": (Effect.MIGRATION, "the table must have the _ columns, or none of them"),
}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """List the fields in which two stored declarations of a pipeline differ.

    Args:
        before: the declaration of the last epoch, as JSON.
        now: the declaration as it is written now, as JSON.
    """
    found = list(_plain(before, now))
    for group, other in (("sinks", "state"), ("state", "sinks")):
        was, becomes = _by_table(before, other), _by_table(now, group)
        found += [
            Change(
                field=f"{group}.{table}", before=f"in {other}", now=f"in {group}", effect=Effect.REFUSED, advice=_KEPT
            )
            for table in sorted(was.keys() & becomes.keys() - _by_table(before, group).keys())
        ]
        moved = {table: sink for table, sink in becomes.items() if table not in was}
        found += _sinks(group, _by_table(before, group), moved)
    return found


def as_last_written(
    before: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]], now: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Add the current sinks that the last epoch's declaration lacks to it, each as it was last declared.

    A table keeps its rows and their meaning while declarations leave the table out.

    Args:
        before: the declaration of the last epoch, as JSON.
        earlier: declarations of committed epochs, the newest first; read only if a sink is missing.
        now: the declaration as it is written now, as JSON.
    """
    missing = {name for group in _GROUPS for name in _by_table(now, group)}
    missing -= {name for group in _GROUPS for name in _by_table(before, group)}
    merged = dict(before)
    for declared in earlier if missing else ():
        for group in sorted(_GROUPS):
            found = {name: sink for name, sink in _by_table(declared, group).items() if name in missing}
            merged[group] = [*merged.get(group, ()), *found.values()]
            missing -= found.keys()
        if not missing:
            break
    return merged


def _plain(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    for field in sorted((set(before) | set(now)) - _GROUPS):
        old, new = before.get(field), now.get(field)
        if old == new:
            continue
        if field == "source" and isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _source(old, new)
        elif field == "windows" and isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _windows(old, new)
        else:
            yield Change(field=field, before=old, now=new, effect=Effect.NEXT_EPOCH)


def _source(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    advice = {
        "connection": "another Kafka cluster is refused: offsets belong to the cluster they were read from",
        "startup": "only for topics that are new to the ledger; origins are kept",
        "topics": "a new topic begins by the startup mode; the heads of a removed topic are kept",
    }
    for field in sorted(set(before) | set(now)):
        old, new = before.get(field), now.get(field)
        if old != new:
            yield Change(
                field=f"source.{field}",
                before=old,
                now=new,
                effect=Effect.NEXT_EPOCH,
                advice=advice.get(field, ""),
            )


def _windows(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    """Refuse changes to open windows, which the old declaration made; another result table has no open windows."""
    kept = before.get("into") == now.get("into")
    advice = "open windows were made by the old one; give the results another table"
    for field in sorted(set(before) | set(now)):
        old, new = before.get(field), now.get(field)
        if old == new:
            continue
        if kept and field in ("window", "key", "aggregates"):
            yield Change(field=f"windows.{field}", before=old, now=new, effect=Effect.REFUSED, advice=advice)
        elif kept and field == "lateness" and _DURATION.validate_python(new) > _DURATION.validate_python(old):
            forgotten = "windows that the old one dropped would begin again; give the results another table"
            yield Change(field="windows.lateness", before=old, now=new, effect=Effect.REFUSED, advice=forgotten)
        else:
            yield Change(field=f"windows.{field}", before=old, now=new, effect=Effect.NEXT_EPOCH)


def _by_table(declaration: Mapping[str, Any], group: str) -> dict[str, Mapping[str, Any]]:
    return {_name(sink): sink for sink in declaration.get(group, ())}


def _name(sink: Mapping[str, Any]) -> str:
    for field, kind in _POST_COMMIT.items():
        if field in sink:
            return f"{kind}:{sink.get('label') or sink[field]}"
    return str(sink["table"])


def _sinks(
    group: str, before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[Change]:
    for table in sorted(before.keys() - now.keys()):
        advice = "the table is kept" if "table" in before[table] else "its unpublished epochs are still published"
        yield Change(field=f"{group}.{table}", before="declared", now=None, effect=Effect.NEXT_EPOCH, advice=advice)
    for table in sorted(now.keys() - before.keys()):
        yield Change(field=f"{group}.{table}", before=None, now="declared", effect=Effect.MIGRATION, advice=_TABLE)
    for table in sorted(before.keys() & now.keys()):
        for field in sorted(before[table].keys() | now[table].keys()):
            old, new = before[table].get(field), now[table].get(field)
            if old == new:
                continue
            if field == "semantics" and old == "at_least_once":
                where = f"{group}.{table}.semantics"
                yield Change(field=where, before=old, now=new, effect=Effect.REFUSED, advice=_UNMARKED)
                continue
            if "table" not in now[table]:
                advice = _OUTBOX if field in ("order_by", "aggregated") and "topic" in now[table] else ""
                effect = Effect.MIGRATION if advice else Effect.NEXT_EPOCH
                yield Change(field=f"{group}.{table}.{field}", before=old, now=new, effect=effect, advice=advice)
                continue
            if field == "columns":
                yield from _columns(f"{group}.{table}.columns", old or {}, new or {})
                continue
            effect, advice = _SINK.get(field, (Effect.NEXT_EPOCH, ""))
            yield Change(field=f"{group}.{table}.{field}", before=old, now=new, effect=effect, advice=advice)


def _columns(where: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if new is None:
            effect, advice = Effect.NEXT_EPOCH, "the table keeps the column; it is NULL in new rows"
        else:
            effect, advice = Effect.MIGRATION, _ALTER
        yield Change(field=f"{where}.{name}", before=old, now=new, effect=effect, advice=advice)
