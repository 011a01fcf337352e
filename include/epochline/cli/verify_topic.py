"""`epochline verify-topic`: compare what a topic shows at both isolation levels."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from epochline.cli import connections, printing
from epochline.cli.options import AsJson
from epochline.config.connections import KAFKA
from epochline.protocol.quantities import counted

if TYPE_CHECKING:
    from epochline.kafka.topic_comparison import TopicComparison, TopicReader

_PAUSE_SECONDS = 0.5
_COUNTS = ("keyless", "distinct_keys", "distinct_values", "repeats", "repeated_keys")


class Levels(StrEnum):
    """Values of ``--isolation``."""

    BOTH = "both"
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def verify_topic(
    topic: Annotated[str, typer.Argument(help="The topic to read.")],
    since_offset: Annotated[int, typer.Option(min=0, help="Begin every partition at this offset.")] = 0,
    isolation: Annotated[Levels, typer.Option(help="Isolation levels to read with.")] = Levels.BOTH,
    follow: Annotated[bool, typer.Option("--follow", help="Keep reading until Ctrl-C, then show the result.")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Keep reading for this many seconds, then show the result.")
    ] = None,
    key_unique: Annotated[
        bool, typer.Option("--key-unique", help="Exit with 1 if two committed records have the same key.")
    ] = False,
    connection: Annotated[str, typer.Option(help="Connection id of the brokers.")] = KAFKA,
    as_json: AsJson = False,
) -> None:
    """Count a topic's records as a read_committed and as a read_uncommitted consumer, side by side.

    Changes nothing. Records that only read_uncommitted shows belong to an aborted transaction, or are undecided: they
    belong to an open transaction or follow it. A repeat is a record with the key, value and headers of an earlier one.

    Exit code 0: success; 1: Kafka cannot be reached, or --key-unique was given and a key occurs twice; 2: wrong use.
    """
    from epochline.kafka.topic_comparison import Isolation, TopicReader  # It loads the Kafka client.

    if key_unique and isolation is Levels.READ_UNCOMMITTED:
        raise typer.BadParameter("--key-unique checks committed records: remove --isolation.")
    isolations = list(Isolation) if isolation is Levels.BOTH else [Isolation(isolation)]
    with TopicReader(connections.adapters().kafka_settings(connection), topic, isolations, since_offset) as reader:
        _read(reader)
        if follow or seconds is not None:
            _follow(reader, seconds)
        tally = reader.result()
    if as_json:
        printing.say(printing.as_json(_plain(tally)))
    else:
        _show(tally)
    if key_unique:
        _judge_keys(tally)


def _read(reader: TopicReader) -> None:
    columns = (TextColumn("offsets read"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        reader.read(lambda done, wanted: bar.update(task, completed=done, total=wanted))


def _follow(reader: TopicReader, seconds: float | None) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        while deadline is None or time.monotonic() < deadline:
            if reader.read():
                printing.progress(_counts(reader.result()))
            time.sleep(_PAUSE_SECONDS)
    except KeyboardInterrupt:
        pass  # Ctrl-C is how --follow ends.


def _counts(tally: TopicComparison) -> str:
    return ", ".join(f"{isolation}: {counted(seen.total, 'record')}" for isolation, seen in tally.seen.items())


def _show(tally: TopicComparison) -> None:
    hidden = tally.hidden
    columns = ["partition", "start", "end", *map(str, tally.seen)]
    rows: list[list[Any]] = [
        [str(partition), start, tally.ends[partition], *(seen.records[partition] for seen in tally.seen.values())]
        for partition, start in tally.starts.items()
    ]
    total: list[Any] = ["all", None, None, *(seen.total for seen in tally.seen.values())]
    if hidden is not None:
        columns += ["aborted", "undecided"]
        rows = [[*row, one.aborted, one.undecided] for row, one in zip(rows, hidden.values(), strict=True)]
        total += [sum(one.aborted for one in hidden.values()), sum(one.undecided for one in hidden.values())]
    printing.table(columns, [*rows, total])
    for isolation, seen in tally.seen.items():
        printing.say(
            f"{isolation}: {counted(seen.distinct_values, 'distinct value')},"
            f" {counted(seen.distinct_keys, 'distinct key')} ({counted(seen.keyless, 'record')} without key),"
            f" {counted(seen.repeats, 'repeat')}"
        )


def _plain(tally: TopicComparison) -> dict[str, Any]:
    hidden = tally.hidden
    return {
        "topic": tally.topic,
        "partitions": [
            {
                "partition": partition,
                "start": start,
                "end": tally.ends[partition],
                **{str(isolation): seen.records[partition] for isolation, seen in tally.seen.items()},
                **({"aborted": hidden[partition].aborted, "undecided": hidden[partition].undecided} if hidden else {}),
            }
            for partition, start in tally.starts.items()
        ],
        **{
            str(isolation): {"records": seen.total} | {name: getattr(seen, name) for name in _COUNTS}
            for isolation, seen in tally.seen.items()
        },
    }


def _judge_keys(tally: TopicComparison) -> None:
    from epochline.kafka.topic_comparison import Isolation

    seen = tally.seen[Isolation.READ_COMMITTED]
    if seen.total and seen.keyless == seen.total:
        printing.progress(f"no committed record of {tally.topic} has a key, so --key-unique checks nothing")
        raise typer.Exit(1)
    if seen.repeated_keys:
        where = "; ".join(f"{first} and {again}" for first, again in seen.examples)
        printing.progress(f"{seen.repeated_keys} committed records repeat a key, such as {where}")
        raise typer.Exit(1)
