"""What becomes of librdkafka's errors."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from epochline.config.kafka import SERVERS
from epochline.errors import SinkUnavailableError
from epochline.kafka.client import Reports

REPORTS = Reports({SERVERS: "here:9092"})


def test_a_fatal_error_that_a_delivery_report_hid_is_reported_as_itself() -> None:
    """X3: where both come in one turn, the client raises a SystemError about the report."""

    def turn() -> None:
        try:
            raise KafkaException(KafkaError(KafkaError._FENCED, "somebody took over", fatal=True))
        except KafkaException as error:
            raise SystemError("_delivered returned a result with an exception set") from error

    with pytest.raises(SinkUnavailableError, match="another process took over"), REPORTS.explaining("sending"):
        turn()


def test_another_system_error_is_left_alone() -> None:
    with pytest.raises(SystemError, match="of Python"), REPORTS.explaining("sending"):
        raise SystemError("of Python")
