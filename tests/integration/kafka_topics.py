"""Topics of tests: made, read back by another client than the one that sends, and sent to by processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from epochline.brokers import python_settings

PROJECT = Path(__file__).parents[2]


def make_topic(settings: Mapping[str, str], name: str, partitions: int = 1, **configs: str) -> str:
    with closing(KafkaAdminClient(**python_settings(settings))) as admin:
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        admin.create_topics({name: wanted}, wait_for_metadata=True)
    return name


def delete_topic(settings: Mapping[str, str], name: str) -> None:
    with closing(KafkaAdminClient(**python_settings(settings))) as admin:
        if name not in admin.list_topics():
            return
        admin.delete_topics([name])
        deadline = time.monotonic() + 30
        while name in admin.list_topics():
            assert time.monotonic() < deadline, f"{name} is still there"
            time.sleep(0.1)


def read_topic(settings: Mapping[str, str], topic: str, isolation: str = "read_committed") -> list[Any]:
    """What kafka-python sees of a topic, partition by partition."""
    consumer = KafkaConsumer(**python_settings(settings), isolation_level=isolation, auto_offset_reset="earliest")
    with closing(consumer):
        keys = [KafkaPartition(topic, one) for one in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(keys)
        ends = consumer.end_offsets(keys)
        found: list[Any] = []
        deadline = time.monotonic() + 30
        while any(consumer.position(key) < ends[key] for key in keys):
            assert time.monotonic() < deadline, f"{topic} could not be read to {ends}"
            for records in consumer.poll(500).values():
                found += records
    return sorted(found, key=lambda record: (record.partition, record.offset))


def values(settings: Mapping[str, str], topic: str, isolation: str = "read_committed") -> list[bytes]:
    return [record.value for record in read_topic(settings, topic, isolation)]


SENDER = """
import sys
from datetime import timedelta
from epochline.errors import EpochlineError
from epochline.kafka.markers import Marker
from epochline.kafka.sending import Outgoing, TransactionalSender, send_plainly
servers, topic, transactional_id, epoch, count = sys.argv[1:]
settings = {"bootstrap.servers": servers}
records = [Outgoing(None, b"%s-%d" % (epoch.encode(), number), (), 0) for number in range(int(count))]
try:
    if transactional_id == "plainly":
        send_plainly(settings, topic, records)
    else:
        with TransactionalSender(settings, transactional_id, timedelta(minutes=1)) as sender:
            sender.fence()
            marker = Marker(generation=1, epoch_id=int(epoch), token="of a process")
            sender.send(topic, records, Marker.key("orders", f"kafka:{topic}"), marker.body())
except EpochlineError as error:
    print(f"{type(error).__name__}: {error}")
else:
    print("sent")
"""


def sending_process(
    bootstrap: str, topic: str, transactional_id: str, epoch: int, count: int, failpoint: str
) -> subprocess.Popen[str]:
    """A process that fences and sends one epoch; a failpoint decides what becomes of it."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "include"), "EPOCHLINE_FAILPOINT": failpoint}
    arguments = [sys.executable, "-c", SENDER, bootstrap, topic, transactional_id, str(epoch), str(count)]
    return subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT
    )
