"""The product's guards, read from the product's own statements, and the mutants that take one away each.

Nothing here repeats what the product does: a guard is there if the text of the statement says so. The model fails, with
no change of a test, as soon as a guard is deleted from ``queries/*.sql`` or from a migration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType

from epochline.postgres.queries.named import statement, statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    swap_compares: bool
    """``advance_head`` inserts a range only at the head (INV-1)."""
    part_asks_fence: bool
    """A part is inserted only for an attempt that is not fenced (INV-4)."""
    part_asks_seal: bool
    """A part is inserted only for an attempt that is not sealed."""
    intent_is_read: bool
    """The range of an attempt is what the plan wrote, not what the log holds now (INV-3)."""
    origin_is_written: bool
    """The first plan writes where a partition begins (S9)."""
    due_in_order: bool
    """What is due is published in the order of its epochs (P12)."""
    chain_constrained: bool
    """The table itself refuses ranges that start or end twice, or start where none ended (INV-1)."""


def guards() -> Guards:
    live = statement("insert_part")
    versions = files("epochline.postgres.ledger.migrations").joinpath("versions").iterdir()
    schema = "\n".join(path.read_text() for path in versions if path.name.endswith(".sql"))
    constraints = ("nothing_starts_twice UNIQUE", "nothing_ends_twice UNIQUE", "starts_where_one_ended\n")
    head, intent = statement("advance_head"), statement("planned_ranges")
    return Guards(
        swap_compares="WHERE %(start_offset)s = (SELECT max(until_offset)" in head,
        part_asks_fence="fenced_at IS NULL" in live and "FOR KEY SHARE" in live,
        part_asks_seal="sealed_at IS NULL" in live and "FOR KEY SHARE" in live,
        intent_is_read="start_offset, until_offset, leader_epoch FROM epochline.planned_range\n" in intent,
        origin_is_written="VALUES" in statement("write_origin"),
        due_in_order="ORDER BY r.epoch_id, r.sink" in statement("due_receipts"),
        chain_constrained=all(f"CONSTRAINT {one}" in schema for one in constraints),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One guard less: ``old`` in the product's text becomes ``new``.

    ``where`` is one statement of ``queries/*.sql`` or several, with spaces between them, or ``module:function``, or
    ``module:Class.method``.
    """

    name: str
    where: str
    old: str
    new: str
    world: str
    """The world of the model in which the mutant is found out."""
    breaks: str
    """What the model's counterexample says."""
    unconstrained: bool = False
    """Whether the database's constraints on the chain are taken away as well: they are a second line of defence."""
    second: Mutant | None = None
    """A guard behind this one, which is taken away as well."""

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Put the mutant in the product's place.

        Raises:
            LookupError: the product no longer says what the mutant takes away.
        """
        alone = _other_code(self.where, self._mutated) if ":" in self.where else self._other_statements()
        with nullcontext() if self.second is None else self.second.in_force(), alone:
            yield

    @contextmanager
    def _other_statements(self) -> Iterator[None]:
        known = statements()
        kept = {name: known[name] for name in self.where.split()}
        known.update({name: self._mutated(source) for name, source in kept.items()})
        try:
            yield
        finally:
            known.update(kept)

    def _mutated(self, source: str) -> str:
        if source.count(self.old) != 1:
            raise LookupError(f"{self.name}: {self.where} says {source.count(self.old)} times: {self.old!r}")
        return source.replace(self.old, self.new)

    def __str__(self) -> str:
        return self.name


@contextmanager
def _other_code(where: str, mutated: Callable[[str], str]) -> Iterator[None]:
    """Give a function of the product the code of its mutated source, wherever it was imported to."""
    module_name, function_name = where.split(":")
    module = importlib.import_module(module_name)
    function = attrgetter(function_name)(module)
    assert isinstance(function, FunctionType)
    source = Path(str(module.__file__)).read_text()
    compiled = compile(mutated(source), str(module.__file__), "exec", dont_inherit=True)
    code = next(one for one in _codes_in(compiled) if one.co_qualname == function_name)
    kept = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = kept


def _codes_in(outer: CodeType) -> Iterator[CodeType]:
    for one in outer.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes_in(one)


LIVE = "insert_part insert_manifest end_job record_error"
"""The statements of a job that ask whether its attempt is live."""

MUTANTS = (
    Mutant(
        name="the commit does not compare and swap",
        where="advance_head", world="a head moved by somebody else", breaks="INV-1", unconstrained=True,
        old="WHERE %(start_offset)s = (SELECT max(until_offset)",
        new="WHERE %(start_offset)s IS DISTINCT FROM (SELECT -1 - max(until_offset)",
    ),
    Mutant(
        name="a part is accepted after the fence",
        where=LIVE, world="one run, two faults",
        breaks="INV-4: a part of attempt 1 of epoch 1 of p was accepted after it was fenced",
        old=" AND fenced_at IS NULL", new="",
    ),
    Mutant(
        name="a part is accepted after the seal",
        where=LIVE, world="one run, two faults",
        breaks="INV-6: a part of attempt 1 of epoch 1 of p was accepted after it was sealed",
        old=" AND sealed_at IS NULL", new="",
    ),
    Mutant(
        name="the seal does not hold parts and rows against the manifest",
        where="epochline.coordinator.seal:seal", world="one run, two faults", breaks="INV-6",
        old="        if problems:\n", new="        if problems and not problems:\n",
    ),
    Mutant(
        name="an attempt reads what the log holds now",
        where="planned_ranges", world="two runs and a record that comes late", breaks="INV-3",
        old="start_offset, until_offset, leader_epoch FROM epochline.planned_range\n",
        new=(
            "start_offset, (SELECT max(l.until_offset) FROM log_end l WHERE l.partition = r.partition) AS until_offset,"
            " leader_epoch FROM epochline.planned_range r\n"
        ),
    ),
    Mutant(
        name="the first plan leaves no origin",
        where="write_origin", world="startup mode latest", breaks="origin",
        old=(
            "VALUES (%(pipeline)s, %(generation)s, %(topic)s, %(topic_id)s, %(partition)s, NULL, %(offset)s,"
            " %(chosen_by)s,\n        %(leader_epoch)s, %(same_log_until)s, %(newest)s, %(read_at)s)"
        ),
        new=(
            "SELECT %(pipeline)s, %(generation)s, %(topic)s, %(topic_id)s, %(partition)s, NULL, %(offset)s,"
            " %(chosen_by)s, %(leader_epoch)s, %(same_log_until)s, %(newest)s, %(read_at)s WHERE false"
        ),
    ),
    Mutant(
        name="the plan reads the heads before it looks for an unfinished epoch",
        where="epochline.coordinator.plan:_still_as_seen", world="two runs and a record that comes late", breaks="I7",
        old=(
            "    unfinished = tx.epochs.unfinished(pipeline.name)\n"
            "    heads = tuple(tx.chain.heads(pipeline.name, row.generation))\n    if heads"
        ),
        new=(
            "    heads = tuple(tx.chain.heads(pipeline.name, row.generation))\n"
            "    unfinished = tx.epochs.unfinished(pipeline.name)\n    if heads"
        ),
    ),
)  # fmt: skip
"""What the model and PostgreSQL must both find out. The last one was a defect that the model found."""

TOPIC_MUTANTS = (
    Mutant(
        name="nobody is fenced",
        where="epochline.sinks.topic:TopicSink.commit", world="one run that publishes, and a retry", breaks="INV-5",
        old="            sender.fence()\n", new="",
    ),
    Mutant(
        name="the marker is asked before the fence",
        where="epochline.sinks.topic:TopicSink.commit", world="one run that publishes, and a retry", breaks="INV-5",
        old="            sender.fence()\n            if self._is_there(committable, sender.mark_end()):\n",
        new="            there = self._is_there(committable, -1)\n            sender.fence()\n            if there:\n",
    ),
    Mutant(
        name="the marker is not asked",
        where="epochline.sinks.topic:TopicSink.commit", world="one run that publishes, and a retry", breaks="INV-5",
        old="if self._is_there(committable, sender.mark_end()):", new="if False:",
    ),
    Mutant(
        name="the marker is committed in a transaction of its own",
        where="epochline.kafka.sending:TransactionalSender.send", world="one run that publishes, and a retry",
        breaks="INV-5",
        old='            failpoint("topic.marker")\n',
        new=(
            "            queue.settle()\n            self._producer.commit_transaction(1.0)\n"
            "            self._producer.begin_transaction()\n"
        ),
    ),
    Mutant(
        name="the receipt is written before the commit",
        where="epochline.coordinator.publish:_show", world="one run that publishes, and a retry", breaks="I7",
        old="    begun = time.monotonic()\n",
        new=(
            "    with ledger.transaction() as tx:\n        tx.receipts.shown(receipt, 0.0, None)\n"
            "    begun = time.monotonic()\n"
        ),
    ),
    Mutant(
        name="a newer epoch is published before an older one",
        where="due_receipts", world="two runs that publish an epoch each",
        breaks="has a receipt that it is shown, and is not in the topic",
        old="ORDER BY r.epoch_id, r.sink", new="ORDER BY r.epoch_id DESC, r.sink",
    ),
    Mutant(
        name="a marker that the ledger does not know is accepted",
        where="epochline.coordinator.evidence:unknown_to", world="one run that publishes, and a ledger set back",
        breaks="INV-5",
        old="if not knows(accepted.shown)]", new="if False]",
        second=Mutant(
            name="also by its publisher",
            where="epochline.sinks.topic:TopicSink._is_there",
            world="one run that publishes, and a ledger set back", breaks="INV-5",
            old="        if not is_committed:\n", new="        if False:\n",
        ),
    ),
)  # fmt: skip
"""What the model must find out about publishing."""
