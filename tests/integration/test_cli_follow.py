"""Commands with `--follow` on real servers: each look is a new one, and Ctrl-C ends them without a word."""

import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from epochline.protocol.epoch import Epoch
from tests.commands import Call
from tests.databases import query
from tests.integration.kafka_topics import produce
from tests.integration.people import Patch

Between = Callable[[Callable[[], object]], None]


@pytest.fixture
def between(monkeypatch: Patch) -> Iterator[Between]:
    """Something happens between the first look and the second, and Ctrl-C is pressed after the second.

    A shell starts its background processes with SIGINT ignored, and Python then leaves it ignored.
    """

    def happens(change: Callable[[], object]) -> None:
        steps: Iterator[Callable[[], object]] = iter([change, partial(signal.raise_signal, signal.SIGINT)])
        monkeypatch.setattr("epochline.cli.options.sleep", lambda _: next(steps)())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield happens
    signal.signal(signal.SIGINT, before)


def test_the_ledger_is_shown_again_until_ctrl_c(
    call: Call, planned: Epoch, postgres_dsn: str, between: Between
) -> None:
    between(lambda: query(postgres_dsn, "UPDATE epochline.epoch SET error = 'the disk is full'"))

    code, out, err = call("ledger", "people", "--follow")

    assert (code, err) == (130, "")
    assert out.count("PLANNED") == 2
    assert out.count("epoch 1 of people: the disk is full") == 1
    assert out.count(" UTC\n") == 2


def test_the_lag_is_shown_again_until_ctrl_c(call: Call, fed: str, kafka_bootstrap: str, between: Between) -> None:
    between(lambda: produce(kafka_bootstrap, fed, [b'{"id": 1}'], partition=0))

    code, out, err = call("lag", "people", "--follow")

    assert (code, err) == (130, "")
    assert [line for line in out.splitlines() if line.startswith("people: ")] == [
        "people: 150 records behind", "people: 151 records behind"
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["ledger --json", "lag --json", "lag --fail-above 3"])
def test_an_option_that_needs_one_answer_is_refused(call: Call, command: str) -> None:
    code, out, err = call(*command.split(), "--follow")

    assert (code, out) == (2, "")
    assert "--follow shows answers until Ctrl-C" in " ".join(err.replace("│", " ").split())
