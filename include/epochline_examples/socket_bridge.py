"""Sends lines of TCP clients to a Kafka topic, in one transaction per interval.

The guarantee is exactly-once from Kafka on, because a socket cannot be read again. A line that is not yet committed is
lost if this process dies, and its sender does not learn of it. Kafka shows all of a transaction's lines or none,
each once. In a topic with one partition the lines of one client keep their order.
"""

from __future__ import annotations

import argparse
import queue
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaException, Producer

FROM_KAFKA_ON = "exactly-once from Kafka on"
REFUSED = (
    "a socket cannot be read again: a crash loses lines that were sent before a commit, so exactly-once from the socket"
    f" on is impossible. The guarantee is {FROM_KAFKA_ON}: add --from-kafka-on if that is enough, otherwise send to"
    " Kafka without a socket in between"
)
_LONGEST = 1_000_000
_LARGEST = 1_048_576
"""Most bytes of a line, and of its record; a broker's default allows as many."""
_WAITING = 10_000
"""Lines in memory before clients must wait."""
_TICK = 0.1


say = partial(print, flush=True)


class Clients(socketserver.ThreadingTCPServer):
    """Takes lines from any number of clients. Clients wait if Kafka is slower."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.lines: queue.Queue[bytes] = queue.Queue(_WAITING)
        super().__init__((host, port), _Client)


class _Client(socketserver.StreamRequestHandler):
    server: Clients

    def handle(self) -> None:
        name = f"{self.client_address[0]}:{self.client_address[1]}"
        say(f"{name} is connected")
        try:
            why = self._take_lines()
        except OSError as error:
            why = f"its connection broke ({error.strerror}); an incomplete line is lost"
        say(f"{name} is gone: {why}")

    def _take_lines(self) -> str:
        while True:
            line = self.rfile.readline(_LONGEST + 1)
            if line.endswith(b"\n"):
                self.server.lines.put(line[:-1].removesuffix(b"\r"))
            elif len(line) > _LONGEST:
                return f"a line of more than {_LONGEST} bytes is not accepted"
            elif line:
                # A last line without an end of line may have been cut off.
                return f"its last {len(line)} bytes have no end of line and are not accepted"
            else:
                return "it closed the connection"


class Transactions:
    """Consecutive Kafka transactions. The first fences another producer with the same id and aborts its transaction.

    ``interval`` is the most seconds of a transaction from its first line, ``lines`` the most lines.
    """

    def __init__(self, settings: dict[str, str | int], topic: str, *, interval: float, lines: int) -> None:
        self._producer, self._topic = Producer(settings), topic
        self._interval, self._most = interval, lines
        self._due = 0.0
        self.open = 0
        """Number of lines in the open transaction; 0 if none is open."""
        self._producer.init_transactions()

    def send(self, line: bytes) -> None:
        """Send a line in the open transaction, or in a new one."""
        if not self.open:
            self._producer.begin_transaction()
            self._due = time.monotonic() + self._interval
        self.open += 1
        while True:
            try:
                return self._producer.produce(self._topic, line)
            except BufferError:
                self._producer.poll(_TICK)

    def commit_if_due(self) -> None:
        """Commit the open transaction if it has enough lines or has been open long enough."""
        self._producer.poll(0)
        if self.open >= self._most or (self.open and time.monotonic() >= self._due):
            self.commit()

    def commit(self) -> None:
        """Show the lines of the open transaction."""
        if not self.open:
            return
        while True:
            try:
                self._producer.commit_transaction()
                break
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        say(f"committed: {self.open} lines")
        self.open = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C; returns 1 if Kafka failed."""
    options = _command_line(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    settings: dict[str, str | int] = {
        "bootstrap.servers": options.bootstrap_servers,
        "transactional.id": options.transactional_id or f"socket-bridge.{options.topic}",
        "message.max.bytes": _LARGEST,
        "transaction.timeout.ms": round(options.transaction_timeout * 1000),
    }
    transactions: Transactions | None = None
    try:
        transactions = Transactions(settings, options.topic, interval=options.interval, lines=options.lines)
        with Clients(*options.listen) as clients:
            threading.Thread(target=clients.serve_forever, daemon=True).start()
            label = FROM_KAFKA_ON if options.from_kafka_on else "at-most-once from the socket on"
            say(f"{label}: a crash loses uncommitted lines, because a socket cannot be read again")
            say(f"listening on {options.listen[0]}:{clients.server_address[1]}")
            try:
                while not stop.is_set() or not clients.lines.empty():
                    with suppress(queue.Empty):
                        line = clients.lines.get(timeout=_TICK)
                        transactions.send(line)
                        say(f"> {line.decode(errors='backslashreplace')}")
                    transactions.commit_if_due()
                transactions.commit()
            finally:
                clients.shutdown()
    except KafkaException as error:
        lost = transactions.open if transactions else 0
        print(f"Kafka failed: {error.args[0].str()}. Uncommitted lines lost: {lost}", file=sys.stderr)
        return 1
    return 0


def _command_line(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", type=_address, required=True, help="host:port, such as 127.0.0.1:9999")
    parser.add_argument("--bootstrap-servers", required=True, help="Kafka's host:port")
    parser.add_argument("--topic", required=True, help="topic of the lines; it must exist")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds of a transaction (default: 10)")
    parser.add_argument("--lines", type=int, default=10_000, help="most lines of a transaction (default: 10000)")
    parser.add_argument("--transactional-id", help="id used by this bridge only (default: socket-bridge.TOPIC)")
    parser.add_argument(
        "--transaction-timeout", type=float, default=900.0,
        help="seconds until Kafka aborts a transaction (default: 900)",
    )  # fmt: skip
    parser.add_argument(
        "--semantics", choices=("at-most-once", "exactly-once"), default="at-most-once",
        help="guarantee for a line that was sent to the socket (default: at-most-once)",
    )  # fmt: skip
    parser.add_argument("--from-kafka-on", action="store_true", help="exactly-once counts from Kafka on")
    options = parser.parse_args(arguments)
    if options.semantics == "exactly-once" and not options.from_kafka_on:
        parser.error(f"--semantics exactly-once: {REFUSED}")
    if options.from_kafka_on and options.semantics != "exactly-once":
        parser.error("--from-kafka-on needs --semantics exactly-once")
    if options.interval <= 0 or options.lines < 1:
        parser.error("--interval and --lines must be more than zero")
    if options.interval >= options.transaction_timeout:
        parser.error("--interval must be shorter than --transaction-timeout, or Kafka aborts transactions")
    return options


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port")
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main())
