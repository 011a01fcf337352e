"""One epoch that a process of its own sends to a topic, so that a test can kill or stop it there."""

from datetime import timedelta

from epochline.errors import EpochlineError
from epochline.kafka.markers import Marker
from epochline.kafka.outgoing import Outgoing
from epochline.kafka.sending import TransactionalSender
from tests.processes.client import Forked, fork_server


def send_epoch(bootstrap: str, topic: str, transactional_id: str, epoch: int, count: int) -> None:
    """Fence and send."""
    records = [Outgoing(None, b"%d-%d" % (epoch, number), (), 0) for number in range(count)]
    try:
        with TransactionalSender({"bootstrap.servers": bootstrap}, transactional_id, timedelta(minutes=1)) as sender:
            sender.fence()
            marker = Marker(generation=1, epoch_id=epoch, token="of a process")
            sender.send(topic, records, Marker.key("orders", f"kafka:{topic}"), marker.body())
    except EpochlineError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("sent")


def sending_process(bootstrap: str, topic: str, transactional_id: str, epoch: int, count: int, at: str) -> Forked:
    """A process that sends one epoch; a failpoint decides what becomes of it."""
    task, environment = "tests.integration.sends:send_epoch", {"EPOCHLINE_FAILPOINT": at}
    given = (bootstrap, topic, transactional_id, epoch, count)
    process: Forked = fork_server.fork(task, *given, environment=environment)
    return process
