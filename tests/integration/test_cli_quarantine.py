"""`epochline quarantine` on records that a real epoch set aside."""

import json
import shlex
from pathlib import Path

import pytest

from epochline.cli.connections import adapters
from epochline.config import discovery
from tests.commands import Call
from tests.databases import query
from tests.integration.in_process import InProcess, from_kafka
from tests.integration.kafka_topics import produce


@pytest.fixture
def set_aside(call: Call, people_topic: str, kafka_bootstrap: str, postgres_dsn: str, tmp_path: Path) -> str:
    """The topic of two epochs: the first set aside offsets 1 and 2 of partition 0, the second offset 3."""
    file = tmp_path / "people.py"
    file.write_text(file.read_text().replace("name=", 'bad_records="quarantine",\n    name='))
    call("migrate")
    declared = discovery.find("people")
    line = InProcess(postgres_dsn, declared, adapters().offsets(declared), from_kafka(kafka_bootstrap))
    produce(kafka_bootstrap, people_topic, [b'{"id": 1}', b'{"id": "x"}'], partition=0)
    produce(
        kafka_bootstrap, people_topic, [b"\xffno\nJSON" + bytes(range(40))], partition=0, key=b"k\x00",
        headers=[("trace", b"4711"), ("empty", b"")],
    )  # fmt: skip
    line.epoch()
    produce(kafka_bootstrap, people_topic, [b"no person"], partition=0)
    line.epoch()
    return people_topic


def test_records_are_listed_the_newest_first_with_the_command_that_goes_on(call: Call, set_aside: str) -> None:
    """F28: each with its offset and reason."""
    code, out, _ = call("quarantine", "people")
    listed = json.loads(call("quarantine", "people", "--json")[1])

    assert code == 0
    assert [(one["epoch_id"], one["topic"], one["offset"]) for one in listed] == [
        (2, set_aside, 3), (1, set_aside, 2), (1, set_aside, 1)
    ]  # fmt: skip
    assert listed[2]["value"] == "\\x" + b'{"id": "x"}'.hex()
    heading, newest, second, *_ = out.splitlines()
    assert heading.split() == ["epoch", "record", "time", "reason", "key", "value", "requeued", "by"]
    assert newest.startswith(f"    2  {set_aside}/0/3")
    assert "no person" in newest
    assert "k\\x00" in second
    assert r"\xffno\nJSON\x00\x01" in second
    assert "… (48 bytes)" in second
    assert out.endswith(
        "3 records not requeued yet. Correct the parse, and then run:\n"
        "epochline requeue people --everything --reason …\n"
    )


def test_the_list_is_narrowed_and_the_command_names_the_same_records(call: Call, set_aside: str) -> None:
    by_epoch = call("quarantine", "people", "--epoch", 1, "--limit", 1)[1]
    by_reason = call("quarantine", "people", "--reason", "%fit bigint%")[1]

    assert len(by_epoch.splitlines()) == 4
    assert "2 records not requeued yet" in by_epoch
    assert by_epoch.endswith("epochline requeue people --epoch 1 --reason …\n")
    assert f"{set_aside}/0/1" in by_reason
    assert by_reason.endswith("epochline requeue people --like '%fit bigint%' --reason …\n")
    told = shlex.split(by_reason.splitlines()[-1].replace("…", "mended"))
    requeued = call(*told[1:])[1]
    assert f"{set_aside}-0: 1 quarantined records are read again" in requeued
    nothing = call("quarantine", "people", "--epoch", 9)
    assert nothing == (0, "no record in the quarantine of people matches\n", "")


def test_one_record_is_shown_with_its_bytes_and_headers(call: Call, set_aside: str) -> None:
    code, out, _ = call("quarantine", "people", "--show", f"{set_aside}/0/2")

    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"{set_aside}/0/2 of epoch 1, generation 1"
    assert "header trace: 4711" in lines
    assert "header empty: " in lines
    assert "key, 2 bytes: k\\x00" in lines
    assert "  00000000  6b 00                                            k." in lines
    assert r"value, 48 bytes: \xffno\nJSON\x00\x01\x02\x03\x04\x05\x06\x07\x08\t\n" in out
    assert "  00000000  ff 6e 6f 0a 4a 53 4f 4e 00 01 02 03 04 05 06 07  .no.JSON........" in lines
    assert lines[-1] == f"epochline requeue people --topic {set_aside} --partition 0 --offset 2 --reason …"


def test_a_requeued_record_names_its_epoch_and_no_command(call: Call, set_aside: str, postgres_dsn: str) -> None:
    query(postgres_dsn, "UPDATE epochline.quarantined_record SET requeued_by = 2, requeued_at = now()")

    shown = call("quarantine", "people", "--show", f"{set_aside}/0/1")[1]
    listed = call("quarantine", "people")[1]

    assert "requeued by epoch 2 at 20" in shown
    assert "epochline requeue" not in shown + listed


def test_an_unknown_pipeline_or_record_is_refused(call: Call, set_aside: str) -> None:
    code, out, err = call("quarantine", "people", "--show", f"{set_aside}/1/7")
    assert (code, out) == (1, "")
    assert f"the quarantine of people has no record {set_aside}/1/7; `epochline quarantine people` lists" in err

    code, _, err = call("quarantine", "peple")
    assert code == 1
    assert "Did you mean people?" in err
    assert call("quarantine", "people", "--show", "17")[0] == 2
