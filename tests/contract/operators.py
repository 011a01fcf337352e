"""What an operator sees and does in a world, and what is written of it."""

from typing import Any, TypeVar

import pytest

from epochline.coordinator import Plan
from epochline.errors import EpochlineError
from epochline.operations import ACTIONS, ActionPreview, Done, Request
from tests.contract.worlds import World

E = TypeVar("E", bound=EpochlineError)
ORDER = Request(actor="ada@here", reason="because a test says so")


def refused_plan(world: World, who: str, error: type[E], said: str) -> E:
    """The error of a run's plan; what the preview says is the same."""
    with pytest.raises(error, match=said):
        world.preview()
    with pytest.raises(error, match=said) as raised:
        world.plan(who)
    return raised.value


def preview_of(world: World, action: str, /, **parameters: Any) -> ActionPreview:
    return ACTIONS[action].preview(world.subject, ACTIONS[action].parameters(**parameters))


def refusal_of(world: World, action: str, /, **parameters: Any) -> str:
    return preview_of(world, action, **parameters).refusal or ""


def act(world: World, name: str, /, **parameters: Any) -> Done:
    return world.act(name, ORDER, **parameters)


def ordered(world: World, name: str, who: str, /, **parameters: Any) -> Plan:
    return world.order(name, ORDER, who, **parameters)


def written(world: World) -> list[tuple[str, str, str, int | None]]:
    with world.ledger.transaction() as tx:
        return [(row.action, row.actor, row.reason, row.epoch_id) for row in tx.operators.actions("orders")]


def heads(world: World, generation: int = 1) -> dict[str, int]:
    with world.ledger.transaction() as tx:
        return {str(head.tp): head.next_offset for head in tx.chain.heads("orders", generation)}


def origins(world: World, generation: int = 1) -> dict[str, int]:
    with world.ledger.transaction() as tx:
        return {str(head.tp): head.origin for head in tx.chain.heads("orders", generation)}


def make_again(world: World) -> None:
    world.kafka.produce("orders", 0, 7, topic_id="another")
    world.kafka.produce("orders", 1, 2, topic_id="another")
