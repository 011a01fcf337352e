"""At most once: writes the offset before rows. NOT a mode of the product: a crash in between loses rows."""

from epochline_examples.two_transactions import Step, run


def program(step: Step) -> None:
    """Two transactions: first the offset, then the rows."""
    step.maybe_crash("begin")
    step.note_offset()
    step.commit()
    step.maybe_crash("middle")  # The offset has moved, but the rows are not there: they will never be read again.
    step.write_rows()
    step.commit()
    step.maybe_crash("end")


if __name__ == "__main__":
    run(program, __doc__)
