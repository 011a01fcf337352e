"""What was fed is known across demos, interruptions and records of other people."""

import json
from pathlib import Path

import pytest

from epochline.cli.demo.fed_logs import FedLogs
from epochline.errors import StackError
from epochline.kafka.feed import feed
from tests.integration.kafka_topics import values


@pytest.fixture
def fed(tmp_path: Path, topic_name: str, kafka_bootstrap: str) -> FedLogs:
    return FedLogs(tmp_path / "demo", topic_name, kafka_bootstrap)


def again(fed: FedLogs) -> FedLogs:
    """The list as the next demo reads it."""
    return FedLogs(fed._folder, fed._topic, fed._bootstrap)


def write(path: Path, count: int) -> Path:
    path.write_text("".join(f"line {number}\n" for number in range(count)))
    return path


def feed_log(fed: FedLogs, lines: int, sent: int | None = None) -> Path:
    """Begin a log of so many lines and send them, or fewer where the feeder dies; `finish` is left to do."""
    log = write(fed.draft(), lines)
    fed.begin(log)
    others_feed(fed, lines if sent is None else sent)
    return log


def others_feed(fed: FedLogs, lines: int) -> None:
    feed(fed._bootstrap, write(fed._folder / "sent", lines), fed._topic, 4)


def produced(fed: FedLogs) -> list[str]:
    return sorted(line for path in fed.paths for line in path.read_text().splitlines())


def in_kafka(fed: FedLogs) -> list[str]:
    return sorted(value.decode() for value in values(fed._bootstrap, fed._topic, "read_uncommitted"))


def test_a_log_that_was_fed_to_its_end_is_listed_as_it_is(fed: FedLogs) -> None:
    assert fed.settle() == []
    log = feed_log(fed, 10)
    fed.finish()

    assert again(fed).settle() == []
    assert again(fed).paths == [log]


@pytest.mark.parametrize("sent", [0, 7, 10], ids=["nothing", "some of it", "all of it"])
def test_an_interrupted_log_is_cut_to_what_kafka_holds(fed: FedLogs, sent: int) -> None:
    feed_log(fed, 10, sent)

    (note,) = again(fed).settle()

    assert f"{sent} of the 10 lines" in note
    assert produced(again(fed)) == in_kafka(fed)
    assert again(fed).settle() == []


def test_records_that_others_fed_count_as_produced(fed: FedLogs) -> None:
    others_feed(fed, 5)
    assert "5 records" in fed.settle()[0]
    feed_log(fed, 10)
    fed.finish()
    others_feed(fed, 3)

    next_one = again(fed)

    assert "3 records" in next_one.settle()[0]
    assert produced(next_one) == in_kafka(fed)


def test_another_producer_at_the_same_time_stops_the_demo(fed: FedLogs) -> None:
    feed_log(fed, 4)
    others_feed(fed, 1)

    with pytest.raises(StackError, match="another producer wrote to topic"):
        fed.finish()


def test_a_list_that_cannot_be_read_is_an_error_that_names_the_remedy(fed: FedLogs) -> None:
    (fed._folder / "fed.json").write_text(json.dumps([{"name": "x"}]))

    with pytest.raises(StackError, match=r"down --wipe"):
        again(fed)
