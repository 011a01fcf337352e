"""One drill: copy, one undisturbed run, then a kill and a recovery per step, each compared with it."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from epochline.adapters import Adapters
from epochline.config.discovery import IGNORE_FILE, code_version
from epochline.config.places import home_folder
from epochline.declare.pipeline import Pipeline
from epochline.declare.version import VERSION
from epochline.drill import production
from epochline.drill.declaration import Shadow, shadow_of
from epochline.drill.faults import Step, next_of, steps_of, steps_of_recovery
from epochline.drill.progress import Outcome, Progress, Result
from epochline.drill.servers import Ran, Servers
from epochline.drill.shown import differences, left_out, shown
from epochline.errors import ActionRefusedError, EpochError, SourceError
from epochline.local.home import Home
from epochline.protocol.quantities import counted

_EPOCHS = 2
"""Epochs into which a drill divides the copied records: the second needs what the first leaves."""

_NOTHING = "nothing was killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a drill is to do.

    Args:
        records: most records to copy.
        minutes: no step begins that would probably end later.
        every: kill at every failpoint that is passed.
        fresh: forget what an earlier call found.
        master: Spark's master.
        variables: names of variables of this environment that the pipeline's functions need.
    """

    records: int
    minutes: float
    every: bool
    fresh: bool
    master: str
    variables: Sequence[str]


class Drill:
    """The drill of one pipeline.

    Args:
        declared: the user's declaration.
        adapters: what reaches production, for reading.
        wanted: what to do.
        report: gets a line for each step.
    """

    def __init__(self, declared: Pipeline, adapters: Adapters, wanted: Wanted, report: Callable[[str], None]) -> None:
        self._declared, self._adapters, self._wanted, self._report = declared, adapters, wanted, report
        self._begun = time.monotonic()
        self._home = Home(home_folder() / "drills" / declared.name)
        self._shadow: Shadow = shadow_of(declared, self._home.path("files"))
        self._servers = Servers(self._home.root, self._shadow.pipeline, wanted.variables, wanted.master)

    def run(self) -> Progress:
        """Run what the time allows. All servers are ended at the end, whatever happens.

        Raises:
            ActionRefusedError: another drill of this pipeline runs.
            EpochError: the pipeline does not even run undisturbed.
            SourceError: there is no record to copy, or Kafka refuses.
        """
        self._home.create()
        # A DAGs folder above must not find the drill's declaration.
        (self._home.root.parent / IGNORE_FILE).write_text("*\n")
        with self._alone():
            # Before the code's version is taken, because these files may lie among the user's.
            self._shadow.write(self._servers.dags, self._servers.functions)
            file = self._home.path("drill.json")
            progress = None if self._wanted.fresh else Progress.read(file, self._bound())
            try:
                self._servers.up(self._report)
                if progress is None:
                    progress = Progress(file=file, bound=self._bound())
                    self._copy(progress)
                    self._undisturbed(progress)
                else:
                    known = counted(len(progress.results), "step")
                    self._report(f"going on after {known} of the drill that began {progress.begun}")
                self._steps(progress)
            finally:
                # A second Ctrl-C would leave servers behind.
                before = signal.signal(signal.SIGINT, signal.SIG_IGN)
                self._servers.down()
                signal.signal(signal.SIGINT, before)
        return progress

    @contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self._home.path("drill.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ActionRefusedError(
                    f"another drill of {self._declared.name} runs in {self._home}. Nothing was done. Wait for its end."
                ) from None
            yield
        finally:
            os.close(handle)

    def _bound(self) -> dict[str, object]:
        wanted = self._wanted
        return {
            "epochline": VERSION, "declaration": self._declared.declaration_hash, "code": code_version(),
            "records": wanted.records, "master": wanted.master, "variables": sorted(wanted.variables),
        }  # fmt: skip

    def _copy(self, progress: Progress) -> None:
        """Take from production what the drill needs. Afterwards nothing of it is reached any more."""
        declared, adapters = self._declared, self._adapters
        progress.begun = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC}"
        ranges = production.ranges_of(adapters, declared, self._wanted.records)
        nothing = SourceError(f"{declared.name}: {declared.source.described} has no record to copy. Nothing was run.")
        if not ranges:
            raise nothing
        notes = [*self._shadow.changes]
        progress.partitions = production.partitions_of(adapters, declared, notes.append)
        dsn = adapters.postgres_dsn(declared.postgres_connection)
        definitions = production.definitions_of(dsn, declared, notes.append)
        progress.records = self._servers.fill(progress.partitions, production.records_of(adapters, declared, ranges))
        if not progress.records:
            raise nothing  # Offsets alone, of transactions or of what compaction removed.
        progress.copied = [str(one) for one in ranges]
        self._report(f"copied {counted(progress.records, 'record')} of {', '.join(progress.copied)}")
        refused = self._servers.prepare(definitions)
        progress.notes = notes + [f"of the targets' definitions was left out: {said}" for said in refused]

    def _undisturbed(self, progress: Progress) -> None:
        ran = self._fresh_run(progress, None)
        if ran.code != 0:
            raise EpochError(
                f"{self._declared.name}: it does not run even if nothing disturbs it, so nothing was killed:"
                f" {ran.said.removeprefix('error: ')} The run's log is {self._home.path('logs', 'run.log')}."
            )
        progress.undisturbed = shown(self._shadow.pipeline, self._servers.dsn, self._servers.kafka)
        progress.passed, progress.seconds = dict(Counter(ran.passed)), ran.seconds
        own = left_out(self._shadow.pipeline, self._servers.dsn)
        progress.notes += (
            ["not compared, because the epoch or the database fills them: " + ", ".join(own)] if own else []
        )
        progress.keep()
        self._report(f"undisturbed run: {ran.seconds:.0f} s, {counted(len(progress.passed), 'failpoint')} passed")

    def _steps(self, progress: Progress) -> None:
        every, longest = self._wanted.every, 2 * progress.seconds + 5
        steps = steps_of(self._shadow.pipeline, progress.passed, every=every)
        done = 0
        while True:
            known = {step.name for step in steps}
            # What recoveries pass is known once they ran.
            steps += [s for s in steps_of_recovery(progress.recovered_by, every=every) if s.name not in known]
            todo = [step for step in steps if step.name not in progress.results]
            progress.left = [step.name for step in todo]
            progress.keep()
            if not todo:
                return
            left = self._wanted.minutes * 60 - (time.monotonic() - self._begun)
            if left < longest:
                self._report(f"{counted(len(todo), 'step')} left after {self._wanted.minutes:g} minutes")
                return
            begun, done = time.monotonic(), len(steps) - len(todo) + 1
            step = next_of(todo, [result.title for result in progress.results.values()])
            result = self._step(progress, step)
            progress.results[step.name] = result
            longest = max(longest, time.monotonic() - begun)
            recovery = f" after {result.seconds:.0f} s" if result.outcome == "equal" and todo[0].faults else ""
            why = f": {result.said}" if result.outcome == "not recovered" else ""
            self._report(f"[{done}/{len(steps)}] {step.name}: {result.killed}, {result.outcome}{recovery}{why}")

    def _step(self, progress: Progress, step: Step) -> Result:
        killed = []
        for number, fault in enumerate(step.faults):
            ran = self._fresh_run(progress, fault) if number == 0 else self._servers.run(self._most(progress), fault)
            if fault.partition("@")[0] not in ran.passed:
                outcome: Outcome = "not reached" if ran.code == 0 else "not recovered"
                said = "" if ran.code == 0 else ran.said.removeprefix("error: ")
                return Result(title=step.title, killed=_NOTHING, seconds=0, outcome=outcome, said=said)
            killed.append(_words(ran))
            self._servers.expire_leases()
        if step.faults:
            ran = self._servers.run(self._most(progress))
            known = {**progress.passed, **progress.recovered_by}
            if len(step.faults) == 1:
                progress.recovered_by |= {name: step.faults[0] for name in ran.passed if name not in known}
        else:
            ran = self._fresh_run(progress, None)
        self._servers.end_runs()
        words = ", then ".join(killed) or _NOTHING
        if ran.code != 0:
            return Result(
                title=step.title, killed=words, seconds=ran.seconds, outcome="not recovered",
                said=ran.said.removeprefix("error: "),
            )  # fmt: skip
        found = differences(progress.undisturbed, shown(self._shadow.pipeline, self._servers.dsn, self._servers.kafka))
        return Result(
            title=step.title, killed=words, seconds=ran.seconds, outcome="different" if found else "equal",
            different=tuple(found),
        )  # fmt: skip

    def _fresh_run(self, progress: Progress, fault: str | None) -> Ran:
        self._servers.reset(progress.partitions)
        return self._servers.run(self._most(progress), fault)

    def _most(self, progress: Progress) -> int:
        return max(1, -(-progress.records // _EPOCHS))


def _words(ran: Ran) -> str:
    match ran.code:
        case 137:
            return "the run was killed"
        case 0:
            return "a worker of Spark was killed, and Spark tried again"
        case None:
            return "a worker was killed, and the run did not end by itself"
    return "a worker of Spark was killed, and the run failed"
