"""The example programs as `epochline examples` runs them, against the declarations that they name."""

from pathlib import Path

import pytest

from epochline_examples.programs import PROGRAMS, Call, Program, Read, Send
from tests.declared import find_all

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda one: one.name)
def test_a_program_names_what_is_declared(program: Program) -> None:
    """X1: its topic is its pipeline's, what it reads is written by that, and each run is of a pipeline that is there."""
    declared = find_all(ROOT / "dags" / "examples")
    pipeline = declared[program.pipeline]

    sent_to = {step.to or program.topic for step in program.steps if isinstance(step, Send)}
    assert {program.topic, *sent_to} - {None} == {
        topic for one in pipeline.kafka_sources.values() for topic in one.topics
    }
    read = {step.topic for step in program.steps if isinstance(step, Read)}
    assert read <= {sink.topic for sink in pipeline.topics}
    run = {step.command.split()[1] for step in program.steps if isinstance(step, Call) and step.command[:4] == "run "}
    assert program.pipeline in run
    assert run <= set(declared)


def test_the_count_per_address_goes_from_the_source_topic_to_the_sink_topic() -> None:
    """X19."""
    pipeline = find_all(ROOT / "dags" / "examples")["ip_count_topic"]

    assert pipeline.source.topics == ("ip_count_source",)
    assert [sink.topic for sink in pipeline.topics] == ["ip_count_sink"]
