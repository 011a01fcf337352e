"""`epochline feed` and `verify-topic`: send the lines of a file to a topic, and count what a topic shows."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from epochline.cli import connections, printing
from epochline.cli.options import AsJson
from epochline.config.connections import KAFKA
from epochline.errors import ConfigurationError
from epochline.kafka.outgoing import Partitioner, json_record, plain_record
from epochline.protocol.quantities import counted

if TYPE_CHECKING:
    from epochline.kafka.topic_comparison import TopicComparison, TopicReader


def feed(
    file: Annotated[Path, typer.Argument(help="The file to send, one record per line; - is standard input.")],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic; created if missing.")],
    from_jsonl: Annotated[
        bool, typer.Option("--from-jsonl", help="Each line is a JSON object with key, value and headers of a record.")
    ] = False,
    partitioner: Annotated[
        Partitioner | None,
        typer.Option(
            help="What chooses the partition of a key: its hash as in Kafka's Java client (murmur2, the default), its"
            " CRC-32 as in librdkafka (consistent), or nothing (round-robin). Needs --from-jsonl."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Most records per second.")] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions, if the topic is created.")] = 4,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            help="Host:port of a Kafka that asks for no login. If not given: the connection epochline_kafka, with its"
            " login and certificates, or the running stack."
        ),
    ] = None,
) -> None:
    """Send the lines of FILE to a topic, one record per line, acknowledged by Kafka.

    A line is the value of a record without a key, and the lines go to the partitions in turn. With --from-jsonl a line
    is a JSON object: key (a text or null), value (a text, any JSON value, or null for a tombstone), headers (an object
    or a list of pairs), partition, timestamp (milliseconds, or ISO 8601 with a zone); key_base64 and value_base64 are
    for bytes. Only a value is required. The error for an invalid line names its number; a file is checked before
    anything is sent, a stream line by line.

    A repeat sends the lines again. Exit code 0: Kafka has every line; 1: not all, the message says how many; 2: wrong
    use.

    For example:

    epochline feed access.log --topic access_log --partitions 4

    epochline feed people.jsonl --topic people --from-jsonl

    echo '{"key": "7", "value": null}' | epochline feed - -t people --from-jsonl
    """
    from epochline.kafka.feed import STANDARD_INPUT, check_readable
    from epochline.kafka.feed import feed as send

    if partitioner is not None and not from_jsonl:
        raise typer.BadParameter("--partitioner needs --from-jsonl: a plain line has no key")
    check_readable(file)
    try:
        brokers = bootstrap_servers or connections.adapters().kafka_settings()
    except ConfigurationError as error:
        raise ConfigurationError(f"{error} --bootstrap-servers names brokers too.") from None
    size = file.stat().st_size if file != STANDARD_INPUT and file.is_file() else None
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{file} → {topic}", total=size)
        report = send(
            brokers, file, topic, partitions, rate,
            lambda read: bar.advance(task, read),
            read=json_record if from_jsonl else plain_record, partitioner=partitioner or Partitioner.MURMUR2,
        )  # fmt: skip
    count = len(report.records)
    if report.created:
        printing.say(f"made topic {topic} with {count} partitions")
    elif count != partitions:
        printing.say(f"topic {topic} exists with {count} partitions, not {partitions}: used as it is")
    for partition, records in report.records.items():
        printing.say(f"partition {partition}: {counted(records, 'record')}")
    printing.say(
        f"{counted(report.total, 'record')}, {counted(report.payload, 'byte')} in {printing.duration(report.seconds)}"
        f" ({printing.number(round(report.rate))} records/s)"
    )


_PAUSE_SECONDS = 0.5
_COUNTS = ("keyless", "distinct_keys", "distinct_values", "repeats", "repeated_keys")


def verify_topic(
    topic: Annotated[str, typer.Argument(help="The topic to read.")],
    since_offset: Annotated[int, typer.Option(min=0, help="Begin every partition at this offset.")] = 0,
    isolation: Annotated[
        Literal["both", "read_committed", "read_uncommitted"], typer.Option(help="Isolation levels to read with.")
    ] = "both",
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

    if key_unique and isolation == "read_uncommitted":
        raise typer.BadParameter("--key-unique checks committed records: remove --isolation.")
    isolations = list(Isolation) if isolation == "both" else [Isolation(isolation)]
    with TopicReader(connections.adapters().kafka_settings(connection), topic, isolations, since_offset) as reader:
        columns = (TextColumn("offsets read"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            reader.read(lambda done, total: bar.update(task, completed=done, total=total))
        if follow or seconds is not None:
            _follow(reader, seconds)
        tally = reader.result()
    if as_json:
        printing.say(printing.as_json(_plain(tally)))
    else:
        _show(tally)
    if key_unique:
        _judge_keys(tally)


def _follow(reader: TopicReader, seconds: float | None) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        while deadline is None or time.monotonic() < deadline:
            if reader.read():
                levels = reader.result().seen.items()
                counts = (f"{isolation}: {counted(level.total, 'record')}" for isolation, level in levels)
                printing.progress(", ".join(counts))
            time.sleep(_PAUSE_SECONDS)
    except KeyboardInterrupt:
        pass  # Ctrl-C is how --follow ends.


def _partitions(tally: TopicComparison) -> list[dict[str, int]]:
    """A row for each partition; what is hidden is counted where both isolation levels were read."""
    rows = []
    for partition, start in tally.starts.items():
        row = {"partition": partition, "start": start, "end": tally.ends[partition]}
        row |= {str(isolation): level.records[partition] for isolation, level in tally.seen.items()}
        if tally.hidden is not None:
            row |= asdict(tally.hidden[partition])
        rows.append(row)
    return rows


def _show(tally: TopicComparison) -> None:
    rows = _partitions(tally)
    columns = list(rows[0])
    total = ["all", None, None, *(sum(row[column] for row in rows) for column in columns[3:])]
    printing.table(columns, [*(list(row.values()) for row in rows), total])
    for isolation, level in tally.seen.items():
        printing.say(
            f"{isolation}: {counted(level.distinct_values, 'distinct value')},"
            f" {counted(level.distinct_keys, 'distinct key')} ({counted(level.keyless, 'record')} without key),"
            f" {counted(level.repeats, 'repeat')}"
        )


def _plain(tally: TopicComparison) -> dict[str, Any]:
    counts = {
        str(isolation): {"records": level.total} | {name: getattr(level, name) for name in _COUNTS}
        for isolation, level in tally.seen.items()
    }
    return {"topic": tally.topic, "partitions": _partitions(tally), **counts}


def _judge_keys(tally: TopicComparison) -> None:
    from epochline.kafka.topic_comparison import Isolation

    committed = tally.seen[Isolation.READ_COMMITTED]
    if committed.total and committed.keyless == committed.total:
        printing.progress(f"no committed record of {tally.topic} has a key, so --key-unique checks nothing")
        raise typer.Exit(1)
    if committed.repeated_keys:
        where = "; ".join(f"{first} and {again}" for first, again in committed.examples)
        printing.progress(f"{committed.repeated_keys} committed records repeat a key, such as {where}")
        raise typer.Exit(1)
