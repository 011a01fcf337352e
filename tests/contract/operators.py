"""What an operator sees and does in a world, and what is written of it."""

from __future__ import annotations

from typing import Any

from epochline.operations import ACTIONS, ActionPreview, Done, Request, Subject
from tests.contract.worlds import World

ORDER = Request(actor="ada@here", reason="because a test says so")


def subject(world: World) -> Subject:
    return Subject(name="orders", ledger=world.ledger, declared=world.pipeline, source=world.kafka)


def preview_of(world: World, action: str, **parameters: Any) -> ActionPreview:
    return ACTIONS[action].preview(subject(world), ACTIONS[action].parameters(**parameters))


def act(world: World, action: str, **parameters: Any) -> Done:
    return ACTIONS[action].act(subject(world), ACTIONS[action].parameters(**parameters), ORDER)


def written(world: World) -> list[tuple[str, str, str, int | None]]:
    with world.ledger.transaction() as tx:
        return [(row.action, row.actor, row.reason, row.epoch_id) for row in tx.operators.actions("orders")]


def heads(world: World, generation: int) -> dict[str, int]:
    with world.ledger.transaction() as tx:
        return {str(head.tp): head.next_offset for head in tx.chain.heads("orders", generation)}


def made_again(world: World) -> None:
    world.kafka.produce("orders", 0, 7, topic_id="another")
    world.kafka.produce("orders", 1, 2, topic_id="another")
