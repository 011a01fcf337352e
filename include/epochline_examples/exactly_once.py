"""Exactly once: writes rows and offset in one transaction, which is the principle of the product."""

from epochline_examples.two_transactions import Step, run


def program(step: Step) -> None:
    """One transaction."""
    step.maybe_crash("begin")
    step.write_rows()
    step.maybe_crash("middle")  # Nothing is there yet, and the offset has not moved.
    step.note_offset()
    step.commit()
    step.maybe_crash("end")


if __name__ == "__main__":
    run(program, __doc__)
