"""The example programs as `epochline examples` runs them, against the declarations that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochline.config.discovery import find_all
from epochline_examples.programs import PROGRAMS
from epochline_examples.steps import Call, Program, Read

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda one: one.name)
def test_a_program_names_what_is_declared(program: Program) -> None:
    """X1: its topic is its pipeline's, what it reads is written by that, and each run is of a pipeline that is there."""
    declared = find_all(ROOT / "dags")
    pipeline = declared[program.pipeline]

    assert pipeline.source.topics == (program.topic,)
    read = {step.topic for step in (*program.steps, program.result) if isinstance(step, Read)}
    assert read <= {sink.topic for sink in pipeline.topics}
    run = {step.command.split()[1] for step in program.steps if isinstance(step, Call) and step.command[:4] == "run "}
    assert program.pipeline in run
    assert run <= set(declared)
