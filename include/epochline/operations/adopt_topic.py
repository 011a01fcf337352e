"""Adopt a topic that was made again or truncated: a new generation begins, and earlier commits stay."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from epochline.coordinator.observe import ConsumerGroup, cut_off, former_leaders_ends
from epochline.coordinator.takeover import shown_ahead
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    Case,
    DirectAction,
    Request,
    Subject,
    mirrored,
    refused,
)
from epochline.operations.adopted_logs import (
    AdoptTopicParameters,
    Logs,
    adopted_heads,
    carried_heads,
    cut_off_of_topic,
    is_adopted,
    is_made_again,
    read_again,
    same_log_until,
)
from epochline.protocol.data_loss import lost_unread
from epochline.protocol.offsets import belongs_to, cut_reached, moved_clusters, with_clusters


class AdoptTopic(DirectAction[AdoptTopicParameters, Logs]):
    """Continue with TOPIC although it was deleted and made again, or its log was truncated. A new generation of
    PIPELINE begins: in TOPIC at the place that --at names, in every other topic at its head. Committed rows stay.
    """

    name = "adopt-topic"
    parameters = AdoptTopicParameters

    def look(self, subject: Subject, parameters: AdoptTopicParameters) -> Logs:
        declared, source = subject.declaration()
        with subject.ledger.transaction() as tx:
            row = tx.epochs.pipeline(subject.name)
            heads = tx.chain.heads(subject.name, row.generation) if row else ()
            shown = shown_ahead(tx.receipts.accepted(subject.name), heads)
            last = tx.receipts.last_mirror(declared.name)
        group = ConsumerGroup.observe(source, declared, last)
        back = [*(topic for topic, _ in group.older), *group.missing]
        view = source.look(declared.source)
        source.confirm(declared.consumer_group)
        ends = former_leaders_ends(source, heads, view)
        offsets = {head.tp: head.next_offset for head in heads}
        # A truncated log that has not grown since ends before its head.
        cut = {
            partition.tp: partition.high_watermark
            for partition in view.partitions
            if partition.high_watermark < offsets.get(partition.tp, 0)
        }
        return Logs(
            cluster_id=with_clusters(view.cluster_id, row.cluster_id if row else None),
            moved=moved_clusters(row.cluster_id if row else None, view.cluster_id),
            partitions=view.partitions,
            ends_below_head=cut | {tp: end for tp, end in ends.items() if end is None or end < offsets[tp]},
            back=frozenset(name for name in declared.inputs if any(belongs_to(name, topic) for topic in back)),
            older=frozenset(group.older),
            group={key: position.offset for key, position in group.offsets.items() if position.epoch_id is not None},
            lost_unread=lost_unread(heads, view.partitions),
            cut_off=cut_off(source, shown, view),
        )

    def describe(self, case: Case[AdoptTopicParameters, Logs]) -> ActionPreview:
        row, heads, parameters, seen = case.row, case.heads, case.parameters, case.seen
        obstacle = _obstacle(case)
        if row is None or obstacle is not None:
            return refused(obstacle or f"{case.pipeline} is not known.")
        adopted = adopted_heads(parameters, seen, heads)
        carried = carried_heads(parameters, seen, heads)
        lines = [
            f"generation {row.generation + 1} of {case.pipeline} begins; rows of the earlier ones stay as they are"
        ]
        lines += [
            f"{head.tp}: begins at {head.next_offset} ({parameters.at}) of topic id {head.tp.topic_id}"
            for head in adopted
        ]
        lines += [f"{head.tp}: goes on at {head.next_offset}" for head in carried]
        lines += read_again(heads, adopted)
        lines += list(seen.lost_unread.values())  # Those of the other topics, too: the next plan starts afresh.
        lines += [
            f"{sink.table}: its key is the place of a record, so a new record at the place of an older row is refused;"
            " declare another table first"
            for sink in case.declared.targets
            if sink.key_is_place
        ]
        lines += [
            f"{cut}; {cut.shown_by} gets every record from offset {cut.end} on"
            for cut in cut_off_of_topic(parameters, seen)
        ]
        if parameters.cluster:
            lines += [
                f"{f'offsets of {name}' if name else 'its offsets'} belong to Kafka cluster {now} from now on, not to"
                f" {before}"
                for name, (before, now) in sorted(seen.moved.items())
            ]
        return ActionPreview(
            lines=lines,
            before=_state(row.generation, row.cluster_id, [(head.tp, head.next_offset) for head in heads]),
            after=_state(
                row.generation + 1, seen.cluster_id, [(head.tp, head.next_offset) for head in (*adopted, *carried)]
            ),
        )

    def change(self, case: Case[AdoptTopicParameters, Logs], request: Request) -> Afterwards:
        tx, subject, parameters, seen = case.tx, case.subject, case.parameters, case.seen
        heads = case.heads
        begun = tx.operators.begin_generation(subject.name, seen.cluster_id)
        for head in adopted_heads(parameters, seen, heads):
            cut = same_log_until(parameters, seen, head.tp)
            tx.chain.carry_over(subject.name, begun.generation, head, f"adopted at {parameters.at}", cut)
        for head in carried_heads(parameters, seen, heads):
            cut = None if head in heads else head.next_offset
            tx.chain.carry_over(subject.name, begun.generation, head, "carried over", cut)
        # Positions of deleted keys belong to the old log, and offsets of the new one must not be compared with them.
        tx.targets.restart_order(case.declared)
        # A sink is not sent the offsets that it showed before `accept-ledger`. Behind the cut other records came in
        # their place, so end these offsets at the cut.
        for receipt in tx.receipts.accepted(subject.name):
            cuts = {cut.tp: cut.end for cut in cut_off_of_topic(parameters, seen) if cut.shown_by == receipt.shown_by}
            if cuts and receipt.shown.reached is not None:
                left = cut_reached(receipt.shown.reached, cuts)
                tx.receipts.accept(subject.name, receipt.shown_by, replace(receipt.shown, reached=left))

        if parameters.topic is not None and is_made_again(seen, heads, parameters.topic):
            # Kafka deletes the offsets of a group with their topic, some time after it.
            tx.receipts.forget_mirrors(subject.name, parameters.topic)
        paused = tx.operators.standing(subject.name).paused
        if seen.back and parameters.cluster:
            tx.receipts.forget_mirrors(subject.name)
            if paused is not None and paused.by == "epochline":
                tx.operators.resume(subject.name)

        # One topic decides nothing for the others: what the group shows of them stays evidence.
        line = f"{subject.name} goes on in generation {begun.generation}"
        return mirrored(case, line, known=parameters.cluster and bool(seen.back))


def _obstacle(case: Case[AdoptTopicParameters, Logs]) -> str | None:
    parameters, seen, unfinished = case.parameters, case.seen, case.unfinished
    if unfinished is not None:
        return f"{unfinished} is {unfinished.state}, and its ranges are of the old log; finish or abort it first."
    if (parameters.topic is None) is not parameters.cluster:
        return "name the topic, or say --cluster for all of them, and not both."
    if parameters.cluster:
        return _obstacle_of_cluster(case.pipeline, parameters, seen)
    if parameters.at == "head":
        return "--at head goes with --cluster: it is for a Kafka that went back in time to the same log."
    if seen.older:
        return (
            "the consumer group shows less than was written to it: Kafka went back in time, so that every topic may be"
            " another one than was read; say --cluster for all of them."
        )
    for name, (_, now) in sorted(seen.moved.items()):
        return (
            f"the connection{f' of {name}' if name else ''} leads to Kafka cluster {now}, so every topic is another"
            " one; correct the connection, or say --cluster."
        )
    if not any(partition.tp.topic == parameters.topic for partition in seen.partitions):
        return f"{case.pipeline} reads no topic {parameters.topic!r}, or the source does not have it."
    read = [head.tp for head in case.heads if head.tp.topic == parameters.topic]
    # A `tp` contains the topic's id: a partition of a topic that was made again is another one.
    made_again = [tp for tp in read if tp not in {partition.tp for partition in seen.partitions}]
    same_log = not made_again and not {*read} & {*seen.ends_below_head, *seen.lost_unread}
    if same_log and not cut_off_of_topic(parameters, seen):
        return f"topic {parameters.topic} is the one that {case.pipeline} has read so far; there is nothing to adopt."
    waits = [view for view in seen.partitions if view.waits_for is not None and view.last_stable < view.high_watermark]
    if parameters.at == "latest" and waits:
        return f"{waits[0].tp} has no latest position yet: {waits[0].waits_for}. Try again when that has ended."
    unknown = [tp for tp, end in seen.ends_below_head.items() if end is None and tp.topic == parameters.topic]
    if parameters.at == "truncation" and (made_again or unknown):
        return (
            f"{[*made_again, *unknown][0]}: the log is another one, not a truncated one, so nobody knows where it was"
            " cut off. Say --at earliest or --at latest."
        )
    return None


def _obstacle_of_cluster(pipeline: str, parameters: AdoptTopicParameters, seen: Logs) -> str | None:
    if not seen.moved and not seen.back:
        return f"{pipeline} reads Kafka cluster {seen.cluster_id}, as before; there is no cluster to adopt."
    if parameters.at in ("truncation", "head") and seen.moved:
        return "a log of another cluster was not cut off anywhere; say --at earliest or --at latest."
    adopted = [view for view in seen.partitions if is_adopted(parameters, seen, view.tp.topic)]
    if parameters.at == "truncation" and not any((view.tp.topic, view.tp.partition) in seen.group for view in adopted):
        return (
            "the consumer group shows nothing, so nobody knows where the logs were cut off. Say --at earliest,"
            " --at latest or --at head."
        )
    cut = next((view.tp for view in adopted if view.tp in seen.ends_below_head), None)
    if parameters.at == "head" and cut is not None:
        return f"the log of {cut} was truncated below its head, so it is not the log that was read."
    return None


def _state(generation: int, cluster: str | None, positions: Sequence[tuple[Any, int]]) -> dict[str, Any]:
    return {
        "generation": generation,
        "cluster_id": cluster,
        "topic_ids": {tp.topic: tp.topic_id for tp, _ in positions},
        "heads": {str(tp): offset for tp, offset in sorted(positions)},
    }
