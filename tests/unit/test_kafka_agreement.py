"""Whether brokers agree about who leads."""

import pytest

from epochline.kafka.agreement import Told, disagreement

SEEN = {("orders", 0): 5}


def told(epoch: int = 5, coordinator: int | None = 1, brokers: tuple[int, ...] = (1, 2, 3)) -> Told:
    return Told(leaders={("orders", 0): epoch}, coordinator=coordinator, brokers=frozenset(brokers))


@pytest.mark.parametrize(
    "answers",
    [
        {1: told(), 2: told(), 3: told()},
        {1: told(), 2: told(), 3: None},
        {1: told(brokers=(1,))},
        {1: told(coordinator=None), 2: told(epoch=4), 3: told()},
    ],
    ids=["all", "one is dead", "one broker", "one is late, and one does not say"],
)
def test_what_most_brokers_confirm_is_believed(answers: dict[int, Told | None]) -> None:
    """INV-9: a loss is reported as one."""
    assert disagreement(SEEN, 1, answers) is None


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({1: told(), 2: told(epoch=6)}, "broker 2 knows a later leader of orders-0 than the one that was asked"),
        ({1: told(), 2: told(coordinator=2)}, "broker 2 says that broker 2 keeps the group, and 1 was asked"),
        ({1: told(), 2: None, 3: None}, "1 of 3 brokers answer"),
        ({1: told()}, "1 of 3 brokers answer"),
        ({}, "0 of 0 brokers answer"),
    ],
)
def test_what_a_broker_contradicts_or_most_do_not_confirm_is_no_loss(answers: dict[int, Told | None], why: str) -> None:
    """INV-9: it is asked again."""
    assert disagreement(SEEN, 1, answers) == why
