"""Whether the brokers of a cluster agree about who leads. One that is cut off answers as it did before."""

from collections.abc import Mapping
from dataclasses import dataclass

Leaders = Mapping[tuple[str, int], int]
"""By topic and partition, the epoch of its leader, which rises with each new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one broker says: the leaders of topics, the coordinator of a group (None if unknown), the brokers."""

    leaders: Leaders
    coordinator: int | None
    brokers: frozenset[int]


def disagreement(seen: Leaders, coordinator: int | None, told: Mapping[int, Told | None]) -> str | None:
    """Why what was seen may be older than what the cluster holds; None if most brokers answer, and nobody knows better.

    Args:
        seen: the leaders whose logs were looked at.
        coordinator: the broker that was asked about the group; None if nobody was.
        told: by broker what it says, None if it does not answer.
    """
    answers = {broker: answer for broker, answer in told.items() if answer is not None}
    named = {*told, *(broker for answer in answers.values() for broker in answer.brokers)}
    for broker, answer in answers.items():
        for (topic, partition), epoch in answer.leaders.items():
            if epoch > seen.get((topic, partition), epoch):
                return f"broker {broker} knows a later leader of {topic}-{partition} than the one that was asked"
        if None not in (coordinator, answer.coordinator) and answer.coordinator != coordinator:
            return f"broker {broker} says that broker {answer.coordinator} keeps the group, and {coordinator} was asked"
    if 2 * len(answers) <= len(named):
        return f"{len(answers)} of {len(named)} brokers answer"
    return None
