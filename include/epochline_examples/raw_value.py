"""Sends the messages ``{"value":"1"}`` to ``{"value":"20"}``, one after another."""

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import closing

TOPIC = "flink_kafka"
"""Topic that this program writes and the pipeline ``raw_value`` reads."""


def produce(bootstrap_servers: str, *, count: int = 20, pause: float = 1.0, topic: str = TOPIC) -> None:
    """Send ``count`` messages without a key, ``pause`` seconds apart; return once Kafka has acknowledged each.

    The topic must exist. With one partition the messages are read in the order in which they were sent.
    """
    from kafka import KafkaProducer

    settings = {"bootstrap_servers": bootstrap_servers, "acks": "all", "enable_idempotence": True}
    with closing(KafkaProducer(**settings)) as producer:
        for number in range(1, count + 1):
            value = json.dumps({"value": str(number)}, separators=(",", ":"))
            producer.send(topic, value=value.encode()).get(30)
            print(f"sent: {value}", flush=True)
            if pause and number < count:
                time.sleep(pause)


def main(arguments: Sequence[str] | None = None) -> None:
    """Send the messages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True, help="Kafka's host:port")
    parser.add_argument("--count", type=int, default=20, help="number of messages (default: 20)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two messages (default: 1)")
    options = parser.parse_args(arguments)
    produce(options.bootstrap_servers, count=options.count, pause=options.pause)


if __name__ == "__main__":
    main()
