"""The searches: what each bounds, and what it must have met for its silence to mean anything."""

from tests.model.protocol import ANY, Bounds

_RECOVERED = {"plan notes: committed epoch", "plan notes: aborted epoch"}
_FENCED = {"part of the job refused", "pre_commit: EpochFencedError"}
_PUBLISHED = {"publish: done", "publish: SinkUnavailableError", "a publisher finds a marker"}

WORLDS = (
    Bounds(
        name="two runs, one fault",
        records=(1, 0),
        # What touches one run alone is met in the world of one run, the janitor in a world with leases that end.
        faults=ANY - {"straggler", "janitor comes", "staging lost"}, takes_long=True,
        sometimes=_RECOVERED | _FENCED | {
            "plan: resumed", "plan: PlanChangedError", "plan: EpochBusyError", "commit: already_committed",
            "commit: EpochStateError", "operator: aborted", "operator: already_committed", "abort: left_for_recovery",
            "a writer finds its staging gone",
        },
    ),
    Bounds(
        name="two runs, records in both partitions, and the janitor",
        faults={"lease expires", "janitor comes"}, most_faults=2, takes_long=True,
        sometimes=_RECOVERED | _FENCED | {"janitor: done", "janitor: ended an epoch", "a writer finds its staging gone"},
    ),
    Bounds(
        name="two runs, records in both partitions, the janitor and a teardown",
        faults={"lease expires", "janitor comes", "teardown"}, most_faults=2, takes_long=True,
        sometimes={"janitor: ended an epoch", "abort: already_committed", "abort: already_aborted"},
    ),
    Bounds(
        name="two runs, records in both partitions, and a retry",
        faults={"retry"}, takes_long=True,
        sometimes=_FENCED | {"plan notes: committed epoch"},
    ),
    Bounds(
        name="one run, two faults",
        runs=1, faults=ANY, most_faults=2, takes_long=True,
        sometimes={
            "plan: reopened", "plan: pre_committed", "plan: already_committed", "part of the job refused",
            "part of a straggler accepted", "part of a straggler refused", "pre_commit: SealRefusedError",
            "commit: already_committed", "commit: StagingLostError", "abort: aborted", "abort: already_aborted",
            "a writer finds its staging gone",
        },
    ),
    Bounds(
        name="two epochs with state, one fault",
        state=True, records=(2, 0), limit=1, faults={"operator aborts", "lease expires"}, takes_long=True,
        sometimes=_RECOVERED | {"part of the job refused", "commit: already_committed", "operator: aborted"},
    ),
    Bounds(
        name="two epochs with state and a retry",
        state=True, records=(2, 0), limit=1, faults={"retry"}, takes_long=True,
        sometimes={"plan: resumed", "plan: pre_committed", "plan notes: committed epoch"},
    ),
    Bounds(
        name="an old epoch re-opened",
        records=(1, 0), faults={"clear", "operator aborts"}, most_faults=2, after_its_end=True, takes_long=True,
        sometimes={"plan: reopened", "plan notes: is not tried again"},
    ),
    Bounds(
        name="two runs and a record that comes late",
        most_faults=0, produced=1, takes_long=True,
        sometimes={"plan notes: committed epoch", "plan: nothing_to_read"},
    ),
    Bounds(
        name="a plan that looks again",
        most_faults=0, tries=2, takes_long=True,
        sometimes={"plan: PlanChangedError", "plan: planned"},
    ),
    Bounds(name="one record per epoch", most_faults=0, limit=1, produced=1, sometimes={"plan: planned"}),
    Bounds(
        name="startup mode latest",
        startup="latest", most_faults=0, produced=2,
        sometimes={"plan: nothing_to_read", "plan: planned"},
    ),
    Bounds(
        name="a head moved by somebody else",
        runs=1, faults={"head moved"}, recovers=False,
        sometimes={"commit: HeadMovedError"},
    ),
    Bounds(
        name="one run that publishes, and a retry",
        topic=True, runs=1, faults={"retry", "answer lost"},
        sometimes=_PUBLISHED | {"publish: LedgerUnavailableError"},
    ),
    Bounds(
        name="one run that publishes, and two faults",
        topic=True, runs=1, records=(1, 0), faults={"retry", "clear", "answer lost"}, most_faults=2, takes_long=True,
        sometimes=_PUBLISHED,
    ),
    Bounds(
        name="two runs that publish an epoch each",
        topic=True, records=(2, 0), limit=1, most_faults=0, takes_long=True,
        sometimes=_PUBLISHED,
    ),
    Bounds(
        name="two runs that publish an epoch each, and a lost answer",
        topic=True, records=(2, 0), limit=1, faults={"answer lost"}, takes_long=True,
        sometimes=_PUBLISHED,
    ),
    Bounds(
        name="one run that publishes, and a ledger set back",
        topic=True, backup=True, runs=1, records=(1, 0), most_faults=0,
        sometimes={"publish: done", "a ledger set back is refused"},
    ),
)  # fmt: skip
