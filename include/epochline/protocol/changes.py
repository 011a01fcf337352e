"""Differences between two declarations of a pipeline, and the effect of each. Pure."""

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter

from epochline.protocol.quantities import duration, number


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

    def __str__(self) -> str:
        """The change in words, such as ``source.records_per_epoch 1,000 → 2,000``."""
        return f"{self.field} {words(self.before)} → {words(self.now)}"


_STORED_DURATION = re.compile(r"-?P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")


def words(value: Any) -> str:
    """A stored value as a person writes it. A missing one is ``none``."""
    match value:
        case None | "" | []:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return number(value)
        case str() if _STORED_DURATION.fullmatch(value):
            return duration(_DURATION.validate_python(value).total_seconds())
        case str():
            return " ".join(value.split())
        case Mapping():
            return ", ".join(f"{name} {words(one)}" for name, one in value.items() if one is not None) or "none"
        case _:
            return (" and " if any(isinstance(one, Mapping) for one in value) else ", ").join(map(words, value))


_KEPT = "existing rows were written by the old one; declare another table, or another pipeline"
_TABLE = "run `epochline migrate`, which creates missing tables; add a column by ALTER TABLE"
_READ_AGAIN = (
    "the ledger has the topics under the name of their input, so records would be read a second time; declare another"
    " pipeline"
)
_ALTER = "`epochline migrate` alters no column; ALTER TABLE first, then run again"
_DURATION = TypeAdapter(timedelta)
_GROUPS = frozenset({"sinks", "state"})
_POST_COMMIT = {"topic": "kafka", "path": "files", "sink": "own"}
_OUTBOX = "the outbox needs other columns: publish all epochs, drop its table, run `epochline migrate`"
_IN_OUTBOX = ("order_by", "aggregated", "topic_column")
_UNMARKED = "no marker says which epochs were sent at least once; give the rows another topic"
_UNIQUE = "the table needs a unique index on exactly this key, and no other; ALTER TABLE first, then run again"
_SINK: Mapping[str, tuple[Effect, str]] = {
    "mode": (Effect.REFUSED, _KEPT),
    "key": (Effect.REFUSED, _KEPT),
    "measures": (Effect.MIGRATION, _ALTER),
    "order_by": (Effect.MIGRATION, "the table needs the _order_ columns; without them order holds within an epoch"),
    "lineage": (Effect.MIGRATION, "the table must have the _ columns, or none of them"),
    "insert_time": (Effect.MIGRATION, "the table must have the column, as timestamptz; ALTER TABLE first"),
    "aggregated": (Effect.MIGRATION, "the table must have the _ columns, or none of them"),
}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """List the fields in which two stored declarations of a pipeline differ."""
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

    ``before`` is the declaration of the last epoch. ``earlier`` has those of committed epochs, the newest first; it is
    read only if a sink is missing.
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


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The fields that differ, sorted, each with its former and its new value; None if it is missing."""
    for field in sorted(before.keys() | now.keys()):
        if before.get(field) != now.get(field):
            yield field, before.get(field), now.get(field)


def _plain(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    for field, old, new in _differing(before, now):
        if field in _GROUPS:
            continue
        if field == "source" and isinstance(old, Mapping) and isinstance(new, Mapping):
            if "inputs" in old and "inputs" in new:
                yield from _several(old, new)
            elif "inputs" in old or "inputs" in new:
                yield _other_names(old, new)
            else:
                yield from _one_source("source", old, new)
        elif field == "windows" and isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _windows(old, new)
        else:
            yield Change(field=field, before=old, now=new, effect=Effect.NEXT_EPOCH)


def _one_source(where: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    advice = {
        "connection": "another Kafka cluster is refused: offsets belong to the cluster they were read from",
        "startup": "only for topics that are new to the ledger; origins are kept",
        "topics": "a new topic begins by the startup mode; the heads of a removed topic are kept",
    }
    if "source" in now:
        advice["connection"] = "the identity of a partition tells whether its positions are the same"
    for field, old, new in _differing(before, now):
        yield Change(
            field=f"{where}.{field}", before=old, now=new, effect=Effect.NEXT_EPOCH, advice=advice.get(field, "")
        )


def _other_names(before: Mapping[str, Any], now: Mapping[str, Any]) -> Change:
    """A single source became several, or the other way round: the ledger would name its topics otherwise."""
    shown = [f"{len(one['inputs'])} sources" if "inputs" in one else "one source" for one in (before, now)]
    return Change(field="source", before=shown[0], now=shown[1], effect=Effect.REFUSED, advice=_READ_AGAIN)


def _several(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    was, becomes = before["inputs"], now["inputs"]
    gone = {name: _place(was[name]) for name in was.keys() - becomes.keys()}
    for name in sorted(gone):
        yield Change(
            field=f"source.inputs.{name}", before="declared", now=None, effect=Effect.NEXT_EPOCH,
            advice="the heads of its topics are kept",
        )  # fmt: skip
    for name in sorted(becomes.keys() - was.keys()):
        former = sorted(one for one, place in gone.items() if place == _place(becomes[name]))
        yield Change(
            field=f"source.inputs.{name}",
            before=former[0] if former else None,
            now=name if former else "declared",
            effect=Effect.REFUSED if former else Effect.NEXT_EPOCH,
            advice=_READ_AGAIN if former else "its topics begin by the startup mode",
        )
    for name in sorted(was.keys() & becomes.keys()):
        yield from _one_source(f"source.inputs.{name}.source", was[name]["source"], becomes[name]["source"])
        for field, old, new in _differing(was[name], becomes[name]):
            if field != "source":
                yield Change(field=f"source.inputs.{name}.{field}", before=old, now=new, effect=Effect.NEXT_EPOCH)
    for field, old, new in _differing(before, now):
        if field == "records_per_epoch":
            yield Change(field=f"source.{field}", before=old, now=new, effect=Effect.NEXT_EPOCH)


def _place(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an input reads, whatever its name is."""
    source = given["source"]
    if "connection" in source:
        return source["connection"], source.get("topics"), source.get("pattern")
    return source.get("source"), source.get("options"), source.get("label")


def _windows(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    """Refuse changes to open windows, which the old declaration made; another result table has no open windows."""
    kept = before.get("into") == now.get("into")
    advice = "open windows were made by the old one; give the results another table"
    for field, old, new in _differing(before, now):
        if kept and field in ("window", "key", "aggregates", "query", "parameters", "retractions"):
            yield Change(field=f"windows.{field}", before=old, now=new, effect=Effect.REFUSED, advice=advice)
        elif kept and field == "lateness" and _DURATION.validate_python(new) > _DURATION.validate_python(old):
            forgotten = "windows that the old one dropped would begin again; give the results another table"
            yield Change(field="windows.lateness", before=old, now=new, effect=Effect.REFUSED, advice=forgotten)
        elif field == "time" and old and new and _moves_marks(old, new):
            carried = "watermarks that records carried depend on the old one; keep both fields, or make a new pipeline"
            yield Change(field="windows.time", before=old, now=new, effect=Effect.REFUSED, advice=carried)
        else:
            yield Change(field=f"windows.{field}", before=old, now=new, effect=Effect.NEXT_EPOCH)


def _moves_marks(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether watermarks that records carried, kept as later times, could be read by another ``out_of_orderness``."""
    kept = now.get("punctuation") and before.get("out_of_orderness") == now.get("out_of_orderness")
    return bool(before.get("punctuation")) and not kept


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
        for field, old, new in _differing(before[table], now[table]):
            if field == "semantics" and old == "at_least_once":
                where = f"{group}.{table}.semantics"
                yield Change(field=where, before=old, now=new, effect=Effect.REFUSED, advice=_UNMARKED)
                continue
            if "table" not in now[table]:
                advice = _OUTBOX if field in _IN_OUTBOX and "topic" in now[table] else ""
                effect = Effect.MIGRATION if advice else Effect.NEXT_EPOCH
                yield Change(field=f"{group}.{table}.{field}", before=old, now=new, effect=effect, advice=advice)
                continue
            if field == "columns":
                yield from _columns(f"{group}.{table}.columns", old or {}, new or {})
                continue
            effect, advice = _SINK.get(field, (Effect.NEXT_EPOCH, ""))
            if field == "key" and before[table].get("mode") == now[table].get("mode") == "append":
                effect, advice = Effect.MIGRATION, _UNIQUE
            yield Change(field=f"{group}.{table}.{field}", before=old, now=new, effect=effect, advice=advice)


def _columns(where: str, before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Change]:
    for name, old, new in _differing(before, now):
        if new is None:
            effect, advice = Effect.NEXT_EPOCH, "the table keeps the column; it is NULL in new rows"
        else:
            effect, advice = Effect.MIGRATION, _ALTER
        yield Change(field=f"{where}.{name}", before=old, now=new, effect=effect, advice=advice)
