"""At least once: writes rows before the offset. NOT a mode of the product: a crash in between repeats rows."""

from epochline_examples.two_transactions import Step, run


def program(step: Step) -> None:
    """Two transactions: first the rows, then the offset."""
    step.maybe_crash("begin")
    step.write_rows()
    step.commit()
    step.maybe_crash("middle")  # The rows are there, but the offset has not moved: they will be written again.
    step.note_offset()
    step.commit()
    step.maybe_crash("end")


if __name__ == "__main__":
    run(program, __doc__)
