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


def produced(fed: FedLogs) -> list[str]:
    return sorted(line for path in fed.paths for line in path.read_text().splitlines())


def in_kafka(bootstrap: str, topic: str) -> list[str]:
    return sorted(value.decode() for value in values(bootstrap, topic, "read_uncommitted"))


def test_a_log_that_was_fed_to_its_end_is_listed_as_it_is(fed, topic_name, kafka_bootstrap):
    assert fed.settle() == []
    log = write(fed.draft(), 10)
    fed.begin(log)
    feed(kafka_bootstrap, log, topic_name, 4)
    fed.finish()

    assert again(fed).settle() == []
    assert again(fed).paths == [log]


@pytest.mark.parametrize("sent", [0, 7, 10], ids=["nothing", "some of it", "all of it"])
def test_an_interrupted_log_is_cut_to_what_kafka_holds(fed, topic_name, kafka_bootstrap, sent):
    log = write(fed.draft(), 10)
    fed.begin(log)
    # The feeder died after so many lines.
    feed(kafka_bootstrap, write(log.with_name("sent"), sent), topic_name, 4)

    (note,) = again(fed).settle()

    assert f"{sent} of the 10 lines" in note
    assert produced(again(fed)) == in_kafka(kafka_bootstrap, topic_name)
    assert again(fed).settle() == []


def test_records_that_others_fed_count_as_produced(fed, topic_name, kafka_bootstrap, tmp_path):
    feed(kafka_bootstrap, write(tmp_path / "theirs", 5), topic_name, 4)
    assert "5 records" in fed.settle()[0]
    log = write(fed.draft(), 10)
    fed.begin(log)
    feed(kafka_bootstrap, log, topic_name, 4)
    fed.finish()
    feed(kafka_bootstrap, write(tmp_path / "theirs", 3), topic_name, 4)

    next_one = again(fed)

    assert "3 records" in next_one.settle()[0]
    assert produced(next_one) == in_kafka(kafka_bootstrap, topic_name)


def test_somebody_who_feeds_at_the_same_time_makes_the_demo_stop(fed, topic_name, kafka_bootstrap, tmp_path):
    log = write(fed.draft(), 4)
    fed.begin(log)
    feed(kafka_bootstrap, log, topic_name, 4)
    feed(kafka_bootstrap, write(tmp_path / "theirs", 1), topic_name, 4)

    with pytest.raises(StackError, match="another producer wrote to topic"):
        fed.finish()


def test_a_list_that_cannot_be_read_is_said(fed):
    (fed._folder / "fed.json").write_text(json.dumps([{"name": "x"}]))

    with pytest.raises(StackError, match=r"down --wipe"):
        again(fed)
