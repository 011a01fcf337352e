"""What `epochline doctor` finds in a cluster's settings that loses records, or stops an epoch later."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from epochline.cli.installation import Check, not_asked
from epochline.cli.machine import clock_check, settings_of
from epochline.cli.standing import held_back
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import KafkaSource
from epochline.protocol.planning import OpenTransaction, SourceView
from epochline.protocol.quantities import counted, duration, size

if TYPE_CHECKING:
    from epochline.kafka.examined import Examined, ExaminedTopic

OPEN_FOR = timedelta(minutes=10)
"""A transaction that began so long ago is taken for forgotten."""

OF_SETTINGS = ("broker_settings", "replicas", "clock")
_DAY = timedelta(days=1)


def kafka_settings(name: str, found: "Examined", pipelines: Sequence[Pipeline]) -> Iterator[Check]:
    """What a cluster sets for brokers and topics, beside what pipelines need."""
    yield _brokers(name, found)
    yield _replicas(name, found)
    if found.clock is None:
        yield from not_asked(("clock",), name, "Kafka does not tell this login")
    else:
        yield clock_check(name, lambda: found.clock or 0.0)
    for pipeline in pipelines:
        sources = [source for source in pipeline.kafka_sources.values() if source.connection == name]
        if sources:
            read = {topic: one for topic, one in found.topics.items() if any(source.reads(topic) for source in sources)}
            yield _retention(pipeline, read)
            yield from _record_sizes(name, pipeline, read, found)


def _alter(topic: str, setting: str, value: object) -> str:
    configs = "kafka-configs.sh --bootstrap-server HOST:9092 --alter --entity-type topics"
    return f"{configs} --entity-name {topic} --add-config {setting}={value}"


def readable(view: SourceView) -> dict[str, Any]:
    """What is said of a source's topics, and what mends it where an open transaction holds them back for long."""
    topics = sorted({partition.tp.topic for partition in view.partitions})
    said = f"{', '.join(topics) or 'no topic matches yet'}: {counted(len(view.partitions), 'partition')}"
    held = held_back(view)
    if held is None:
        return {"said": said}
    mends = []
    for partition in view.partitions:
        topic = partition.tp.topic.rpartition("/")[2]  # one of several sources puts its own name and a slash before it
        mends += [_end(topic, partition.tp.partition, one) for one in partition.open_transactions if _stays(one)]
    if not mends:
        return {"said": f"{said}; {held}"}
    return {"outcome": "warning", "said": f"{said}; {held}", "mend": " && ".join(dict.fromkeys(mends))}


def _stays(one: OpenTransaction) -> bool:
    return one.hangs or (one.begun_at is not None and datetime.now(UTC) - one.begun_at > OPEN_FOR)


def _end(topic: str, partition: int, one: OpenTransaction) -> str:
    """What ends a transaction. A login that may not describe a healthy one takes it for one that hangs."""
    if not one.hangs:
        return f"start the producer of {one.transactional_id!r} again, which ends it"
    tool, where = "kafka-transactions.sh --bootstrap-server HOST:9092", f"--topic {topic} --partition {partition}"
    return f"{tool} abort {where} --start-offset {one.start_offset}, if {tool} find-hanging {where} lists it"


def topics_sent(name: str, pipelines: Sequence[Pipeline]) -> set[str]:
    """The topics to which pipelines send by a connection, and that of the markers."""
    sinks = [sink for one in pipelines for sink in one.topics if sink.connection == name]
    return {topic for sink in sinks for topic in sink.sent_topics}


def sources_read(name: str, pipelines: Sequence[Pipeline]) -> list[KafkaSource]:
    """The sources that pipelines read by a connection."""
    return [source for one in pipelines for source in one.kafka_sources.values() if source.connection == name]


def _brokers(name: str, found: "Examined") -> Check:
    said, mend = [], []
    setting = "unclean.leader.election.enable"
    unclean = [topic for topic, one in found.topics.items() if one.settings.get(setting) == "true"]
    if unclean:
        said.append(f"{setting} of {', '.join(unclean)}: a lost broker takes read records along")
        mend += [_alter(topic, setting, "false") for topic in unclean]
    setting = "auto.create.topics.enable"
    if "true" in found.settings.get(setting, ()):
        said.append(f"{setting}: a mistyped or deleted topic comes back empty, and its pipeline stands")
        mend.append(f"in each broker's server.properties: {setting}=false")
    minutes = min(map(int, found.settings.get("offsets.retention.minutes", ())), default=10_080)
    if timedelta(minutes=minutes) < _DAY:
        said.append(
            f"offsets.retention.minutes is {minutes}: the group that shows a restored database is gone so soon after"
            " the last commit"
        )
        mend.append("in each broker's server.properties: offsets.retention.minutes=10080")
    if said:
        return Check(
            check="broker_settings", subject=name, outcome="warning", said="; ".join(said), mend=" && ".join(mend)
        )
    if not found.settings:
        return Check(check="broker_settings", subject=name, outcome="not_asked", said="Kafka does not tell this login")
    return Check(check="broker_settings", subject=name, said=f"as they should be on {counted(found.brokers, 'broker')}")


def _replicas(name: str, found: "Examined") -> Check:
    """A write is refused if too few replicas are in sync, and may be lost if one is enough."""
    setting = "min.insync.replicas"
    least = {topic: int(one.settings.get(setting, 1)) for topic, one in found.topics.items()}
    stuck = {topic: one.in_sync for topic, one in found.topics.items() if one.in_sync < least[topic]}
    single = [topic for topic, one in found.topics.items() if one.replicas < 2 <= found.brokers]
    alone = [topic for topic, one in found.topics.items() if least[topic] < 2 <= one.replicas]
    if stuck:
        said = ", ".join(f"{topic}: {in_sync} in sync, {setting} {least[topic]}" for topic, in_sync in stuck.items())
        said += "; Kafka refuses records. Start the missing brokers, or ask for fewer"
        mend = " && ".join(_alter(topic, setting, in_sync) for topic, in_sync in stuck.items())
        return Check(check="replicas", subject=name, outcome="wrong", said=said, mend=mend)
    if single:
        said = f"{', '.join(single)}: one replica on {counted(found.brokers, 'broker')}; its disk is all there is"
        mend = "kafka-reassign-partitions.sh, with three replicas for each partition"
        return Check(check="replicas", subject=name, outcome="warning", said=said, mend=mend)
    if alone:
        said = f"{', '.join(alone)}: {setting} is 1, so a record that one broker took may be gone with it"
        mend = " && ".join(_alter(topic, setting, 2) for topic in alone)
        return Check(check="replicas", subject=name, outcome="warning", said=said, mend=mend)
    return Check(check="replicas", subject=name, said=f"all in sync on {counted(found.brokers, 'broker')}")


def _retention(pipeline: Pipeline, read: Mapping[str, "ExaminedTopic"]) -> Check:
    """Whether Kafka keeps records until the schedule reads them, and for a day beyond."""
    interval = settings_of(pipeline).interval
    kept = {
        topic: timedelta(milliseconds=int(one.settings["retention.ms"]))
        for topic, one in read.items()
        if "delete" in one.settings.get("cleanup.policy", "") and int(one.settings["retention.ms"]) >= 0
    }
    limited = [
        f"{topic}: {size(int(one.settings['retention.bytes']))}"
        for topic, one in read.items()
        if int(one.settings.get("retention.bytes", -1)) >= 0
    ]
    also = f"; less of what is larger than its retention.bytes ({', '.join(limited)})" if limited else ""
    if not kept and (not read or not all(one.settings for one in read.values())):
        said = "no topic was found, or Kafka does not tell this login"
        return Check(check="retention", subject=pipeline.name, outcome="not_asked", said=said)
    if not kept:
        return Check(check="retention", subject=pipeline.name, said=f"records are kept for ever, or by key{also}")
    topic = min(kept, key=kept.__getitem__)
    shortest, every = kept[topic], interval if isinstance(interval, timedelta) else None
    said = f"{topic} keeps records for {duration(shortest.total_seconds())}{also}"
    mend = _alter(topic, "retention.ms", 604_800_000)
    if every is not None and shortest < 2 * every:
        said += f", and is read every {duration(every.total_seconds())}: records go unread"
        return Check(check="retention", subject=pipeline.name, outcome="wrong", said=said, mend=mend)
    if shortest < _DAY:
        said += ": a pipeline that stands for so long loses records"
        return Check(check="retention", subject=pipeline.name, outcome="warning", said=said, mend=mend)
    return Check(check="retention", subject=pipeline.name, said=said)


def _record_sizes(
    name: str, pipeline: Pipeline, read: Mapping[str, "ExaminedTopic"], found: "Examined"
) -> Iterator[Check]:
    """Whether a sink's topics take records as large as those that are read."""
    limit = "max.message.bytes"
    largest = max((int(one.settings[limit]) for one in read.values() if limit in one.settings), default=0)
    for sink in pipeline.topics:
        if sink.connection != name:
            continue
        about: dict[str, Any] = {"check": "record_size", "subject": f"{pipeline.name} {sink.name}"}
        small = {
            topic: int(found.topics[topic].settings[limit])
            for topic in sink.topics
            if topic in found.topics and int(found.topics[topic].settings.get(limit, largest)) < largest
        }
        if not small:
            yield Check(**about, said="takes records as large as those that are read")
            continue
        smaller = ", ".join(f"{topic} up to {size(most)}" for topic, most in small.items())
        said = f"takes {smaller}, and records that are read have up to {size(largest)}: a larger one stops its epoch"
        mend = " && ".join(_alter(topic, limit, largest) for topic in small)
        yield Check(**about, outcome="warning", said=said, mend=mend)
