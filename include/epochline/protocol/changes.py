"""Differences between two declarations of a pipeline, and the effect of each. Pure."""

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
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
    effect: Effect = Effect.NEXT_EPOCH
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
            return ", ".join(f"{name} {words(part)}" for name, part in value.items() if part is not None) or "none"
        case _:
            return (" and " if any(isinstance(part, Mapping) for part in value) else ", ").join(map(words, value))


_KEPT = "existing rows were written by the old one; declare another table, or another pipeline"
_TABLE = "run `epochline migrate`, which creates missing tables; add a column by ALTER TABLE"
_READ_AGAIN = (
    "the ledger has the topics under the name of their input, so records would be read a second time; declare another"
    " pipeline"
)
_ALTER = "`epochline migrate` alters no column; ALTER TABLE first, then run again"
_DURATION = TypeAdapter(timedelta)
_NEXT = (Effect.NEXT_EPOCH, "")
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
    changed = list(_plain(before, now))
    for group, other in (("sinks", "state"), ("state", "sinks")):
        was, becomes = _by_table(before, other), _by_table(now, group)
        changed += [
            Change(
                field=f"{group}.{table}", before=f"in {other}", now=f"in {group}", effect=Effect.REFUSED, advice=_KEPT
            )
            for table in sorted(was.keys() & becomes.keys() - _by_table(before, group).keys())
        ]
        moved = {table: sink for table, sink in becomes.items() if table not in was}
        changed += _sinks(group, _by_table(before, group), moved)
    return changed


def as_last_written(
    before: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]], now: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Add the current sinks that the last declaration lacks, as ``earlier`` ones had them: their rows are kept."""
    missing = {name for group in _GROUPS for name in _by_table(now, group)}
    missing -= {name for group in _GROUPS for name in _by_table(before, group)}
    merged = dict(before)
    for declared in earlier if missing else ():
        for group in sorted(_GROUPS):
            kept = {name: sink for name, sink in _by_table(declared, group).items() if name in missing}
            merged[group] = [*merged.get(group, ()), *kept.values()]
            missing -= kept.keys()
        if not missing:
            break
    return merged


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The fields that differ, sorted, each with its former and its new value; None if it is missing."""
    for field in sorted(before.keys() | now.keys()):
        if before.get(field) != now.get(field):
            yield field, before.get(field), now.get(field)


def _compared(
    where: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    effect_of: Callable[[str, Any, Any], tuple[Effect, str]] = lambda field, old, new: _NEXT,
) -> Iterator[Change]:
    """The changes of the fields of one part; ``effect_of`` gives effect and advice of each."""
    for field, old, new in _differing(before, now):
        effect, advice = effect_of(field, old, new)
        yield Change(field=f"{where}{field}", before=old, now=new, effect=effect, advice=advice)


def _plain(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    for field, old, new in _differing(before, now):
        if field in _GROUPS:
            continue
        if field == "source" and old and new:
            if "inputs" in old and "inputs" in new:
                yield from _several(old, new)
            elif "inputs" in old or "inputs" in new:
                # The ledger would name the topics otherwise.
                shown = [f"{len(side['inputs'])} sources" if "inputs" in side else "one source" for side in (old, new)]
                yield Change(field=field, before=shown[0], now=shown[1], effect=Effect.REFUSED, advice=_READ_AGAIN)
            else:
                yield from _one_source("source.", old, new)
        elif field == "windows" and old and new:
            yield from _compared("windows.", old, new, partial(_on_windows, old.get("into") == new.get("into")))
        else:
            yield Change(field=field, before=old, now=new)


def _one_source(where: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    advice = {
        "connection": "another Kafka cluster is refused: offsets belong to the cluster they were read from",
        "startup": "only for topics that are new to the ledger; origins are kept",
        "topics": "a new topic begins by the startup mode; the heads of a removed topic are kept",
    }
    if "source" in now:
        advice["connection"] = "the identity of a partition tells whether its positions are the same"
    yield from _compared(where, before, now, lambda field, old, new: (Effect.NEXT_EPOCH, advice.get(field, "")))


def _several(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    was, becomes = before["inputs"], now["inputs"]
    gone = {name: _place(was[name]) for name in was.keys() - becomes.keys()}
    for name in sorted(gone):
        yield Change(
            field=f"source.inputs.{name}", before="declared", now=None, advice="the heads of its topics are kept"
        )
    for name in sorted(becomes.keys() - was.keys()):
        former = min((other for other, place in gone.items() if place == _place(becomes[name])), default=None)
        effect, advice = Effect.NEXT_EPOCH, "its topics begin by the startup mode"
        if former is not None:
            effect, advice = Effect.REFUSED, _READ_AGAIN
        shown = "declared" if former is None else name
        yield Change(field=f"source.inputs.{name}", before=former, now=shown, effect=effect, advice=advice)
    for name in sorted(was.keys() & becomes.keys()):
        where = f"source.inputs.{name}."
        yield from _one_source(f"{where}source.", was[name]["source"], becomes[name]["source"])
        yield from _compared(where, {**was[name], "source": None}, {**becomes[name], "source": None})
    yield from _compared("source.", {**before, "inputs": None}, {**now, "inputs": None})


def _place(declared: Mapping[str, Any]) -> tuple[Any, ...]:
    source = declared["source"]
    names = ("connection", "topics", "pattern") if "connection" in source else ("source", "options", "label")
    return tuple(source.get(name) for name in names)


def _on_windows(kept: bool, field: str, old: Any, new: Any) -> tuple[Effect, str]:
    """Refuse changes to open windows, which the old declaration made; another result table has no open windows."""
    if kept and field in ("window", "key", "aggregates", "query", "parameters", "retractions"):
        return Effect.REFUSED, "open windows were made by the old one; give the results another table"
    if kept and field == "lateness" and _DURATION.validate_python(new) > _DURATION.validate_python(old):
        return Effect.REFUSED, "windows that the old one dropped would begin again; give the results another table"
    if field == "time" and old and new and _moves_marks(old, new):
        return (
            Effect.REFUSED,
            "watermarks that records carried depend on the old one; keep both fields, or make a new pipeline",
        )
    return _NEXT


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
        yield Change(field=f"{group}.{table}", before="declared", now=None, advice=advice)
    for table in sorted(now.keys() - before.keys()):
        yield Change(field=f"{group}.{table}", before=None, now="declared", effect=Effect.MIGRATION, advice=_TABLE)
    for table in sorted(before.keys() & now.keys()):
        old, new = before[table], now[table]
        for change in _compared(f"{group}.{table}.", old, new, partial(_on_sink, old, new)):
            if change.field == f"{group}.{table}.columns" and "table" in new:
                yield from _compared(f"{change.field}.", change.before or {}, change.now or {}, _on_column)
            else:
                yield change


def _on_sink(was: Mapping[str, Any], becomes: Mapping[str, Any], field: str, old: Any, new: Any) -> tuple[Effect, str]:
    if field == "semantics" and old == "at_least_once":
        return Effect.REFUSED, _UNMARKED
    if "table" not in becomes:
        return (Effect.MIGRATION, _OUTBOX) if field in _IN_OUTBOX and "topic" in becomes else _NEXT
    if field == "key" and was.get("mode") == becomes.get("mode") == "append":
        return Effect.MIGRATION, _UNIQUE
    return _SINK.get(field, _NEXT)


def _on_column(name: str, old: Any, new: Any) -> tuple[Effect, str]:
    if new is None:
        return Effect.NEXT_EPOCH, "the table keeps the column; it is NULL in new rows"
    return Effect.MIGRATION, _ALTER
