"""What is compared after the last epoch: states that all epochs left, and rows that belong to none."""

from collections.abc import Callable, Sequence

from epochline.audit.findings import Difference, Summary
from epochline.audit.last_states import LastStates
from epochline.audit.recorded import Recorded, RecordedEpoch
from epochline.audit.rows import strays
from epochline.audit.session import AuditSession
from epochline.declare.pipeline import Pipeline
from epochline.postgres.targets.catalog import find_target
from epochline.postgres.targets.claims import missing_rows


class Ending:
    """The comparisons of a pipeline as a whole, by the declaration of its newest epoch; ``tell`` gets the differences.

    Notes and targets that were not judged are added to the summary.
    """

    def __init__(
        self, connection: AuditSession, recorded: Recorded, declared: Pipeline, summary: Summary,
        tell: Callable[[Difference], None],
    ) -> None:  # fmt: skip
        self._connection, self._recorded, self._declared = connection, recorded, declared
        self._summary, self._tell = summary, tell

    def compare_ledger(self, epochs: Sequence[RecordedEpoch]) -> None:
        """Compare what the ledger says of the epochs in several places: a count or an offset may have rotted."""
        with self._connection.snapshot():
            rows = list(self._recorded.contradictions(epochs[0].epoch_id, epochs[-1].epoch_id))
        for row in rows:
            self._tell(
                Difference(
                    epoch_id=row.epoch_id, where="ledger", kind="count", topic=row.topic, partition=row.partition,
                    said=row.said,
                )
            )  # fmt: skip

    def compare_last_states(self, states: LastStates, epochs: Sequence[RecordedEpoch]) -> None:
        """Compare targets whose rows depend on several epochs with what these should have left in them."""
        with self._connection.snapshot():
            erased = self._recorded.erased(epochs)
        for found in states.differences():
            if not erased.accounts_for(found):
                self._tell(found)
        self._summary.notes += tuple(states.notes())
        self._summary.not_judged_targets = tuple(states.why_not)

    def find_lost(self) -> None:
        """Find targets that are not the tables that epochs wrote, and rows that are missing whatever their values."""
        with self._connection.snapshot():
            for sink in self._declared.targets:
                why = missing_rows(self._connection, self._declared, sink)
                if why is not None:
                    self._tell(Difference(epoch_id=None, where=sink.table, kind="missing", said=why))

    def find_strays(self) -> None:
        """Find rows of append targets that name no committed epoch; count those that name none at all."""
        with self._connection.snapshot():
            sinks = [
                sink.table
                for sink in self._declared.targets
                if sink.mode == "append" and "_offset" in sink.carried_lineage
                and (target := find_target(self._connection, sink.table)) is not None
                and set(sink.added_columns) <= set(target.columns)
            ]  # fmt: skip
        for sink in sinks:
            without = 0
            for row in strays(self._connection, sink, self._declared.name):
                if row.epoch_id is None:
                    without += 1
                    continue
                self._tell(row._replace(epoch_id=None).told(sink))
            if without:
                note = f"{sink}: {without} rows name no epoch: another program wrote them, or they were there before"
                self._summary.notes += (note,)

    def compare_states(self) -> None:
        """Read each state table whole and compare it with what the last epoch left, whatever its triggers counted."""
        with self._connection.snapshot():
            standings = {state.table: self._recorded.state(state.table) for state in self._declared.states}
        for table, standing in standings.items():
            what = "the table is gone" if standing.now is None else standing.difference
            if what is not None:
                self._tell(Difference(epoch_id=standing.left_by, where=table, kind="changed", said=what))
