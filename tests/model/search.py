"""Breadth-first search through every state of a world: what it reached, and the shortest way to what must not be."""

import logging
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from unittest.mock import patch

from tests.model.guards import Guards, Mutant, guards
from tests.model.protocol import Bounds, Label, Protocol, State
from tests.model.replay import parts_in_one
from tests.model.tables import Violation
from tests.model.topic import in_the_model
from tests.model.worlds import WORLDS

_PLANNING = sys.modules["epochline.coordinator.plan"]  # the package has a function of the same name


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    world: Bounds
    states: int
    transitions: int
    tables: int
    """Different contents of the ledger's tables."""
    met: frozenset[str]
    seconds: float
    counterexample: tuple[str, ...] | None = None
    """The shortest way to a broken invariant, step by step; the last line says which."""

    def __str__(self) -> str:
        return (
            f"{self.world.name}: {self.states} states, {self.transitions} transitions, {self.tables} contents of the"
            f" tables, {self.seconds:.1f} s"
        )


def search(world: Bounds, in_force: Guards | None = None) -> Found:
    """Reach every state of the world, or the first that breaks an invariant."""
    logging.disable(logging.CRITICAL)
    try:
        with in_the_model(), parts_in_one(), patch.object(_PLANNING, "_TRIES", world.tries):
            return _search(world, in_force or guards())
    finally:
        logging.disable(logging.NOTSET)


def search_without(mutant: Mutant, *, unconstrained: bool) -> Found:
    """What the mutant's world shows without its guard, and without the chain's constraints if ``unconstrained``."""
    with mutant.in_force():
        in_force = guards()
        if unconstrained:
            in_force = replace(in_force, chain_constrained=False)
        return search(next(world for world in WORLDS if world.name == mutant.world), in_force)


def _search(world: Bounds, in_force: Guards) -> Found:
    began = time.monotonic()
    protocol = Protocol(world, in_force)
    first = protocol.first()
    came_from: dict[State, tuple[State, Label] | None] = {first: None}
    checked: set[tuple[int, int, int | None]] = set()
    queue, transitions, broken, at = deque([first]), 0, None, first
    try:
        while queue:
            at = queue.popleft()
            if (at.rows, at.kafka, at.backup) not in checked:
                checked.add((at.rows, at.kafka, at.backup))
                protocol.check(at)
            for label, state in protocol.next(at):
                transitions += 1
                if state not in came_from:
                    came_from[state] = (at, label)
                    queue.append(state)
    except Violation as violation:
        broken = str(violation)
    return Found(
        world=world,
        states=len(came_from),
        transitions=transitions,
        tables=len({state.rows for state in came_from}),
        met=frozenset(protocol.met),
        seconds=time.monotonic() - began,
        counterexample=None if broken is None else (*map(protocol.describe, _way(came_from, at)), broken),
    )


def _way(came_from: dict[State, tuple[State, Label] | None], at: State) -> list[Label]:
    steps = []
    while (came := came_from[at]) is not None:
        at, label = came
        steps.append(label)
    return steps[::-1]
