"""Who reads a soak's topics while everything breaks: a read_committed and a read_uncommitted consumer, from the start."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tests.crash.watching import Watchers, ends
from tests.soak.pipelines import key_of
from tests.soak.watch import Exactness


class TopicWatch:
    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self._bootstrap = bootstrap
        self._watched = {topic: Watchers(bootstrap, topic) for topic in topics}

    def stop(self) -> list[str]:
        """Let all read to the end as it is now. Returns why what they saw proves nothing."""
        wrong = []
        for topic, one in self._watched.items():
            for watcher, isolation in ((one.committed, "read_committed"), (one.every, "read_uncommitted")):
                try:
                    watcher.catch_up(ends(self._bootstrap, topic, isolation))
                    watcher.end()
                except Exception as error:
                    wrong.append(f"the {isolation} consumer of {topic} ended: {type(error).__name__}: {error}")
        return wrong

    def compare(self, topic: str, log: Iterable[tuple[int, int, str]]) -> Exactness:
        """Hold what the read_committed consumer saw against the records of the log: partition, offset, value."""
        produced = [value for _, _, value in sorted(log)]
        one = self._watched[topic]
        came, every = ([given.value for given in watcher.given] for watcher in (one.committed, one.every))
        return verdict(topic, came, every, produced)


def verdict(topic: str, came: Sequence[str], every: Sequence[str], produced: Sequence[str]) -> Exactness:
    """Hold values that came, and all that uncommitted readers saw, against those that were produced, in order."""
    wanted, seen = Counter(produced), Counter(came)
    more = seen - wanted
    keyed, expected = _by_key(came), _by_key(produced)
    disordered = [
        key for key, values in expected.items() if keyed[key] != values and sorted(keyed[key]) == sorted(values)
    ]
    return Exactness(
        name=topic, records=len(produced), missing=(wanted - seen).total(),
        duplicates=sum(times for value, times in more.items() if value in wanted),
        strangers=sum(1 for value in more if value not in wanted),
        disordered=len(disordered), hidden=len(every) - len(came),
    )  # fmt: skip


def _by_key(values: Iterable[str]) -> defaultdict[str, list[str]]:
    keyed: defaultdict[str, list[str]] = defaultdict(list)
    for value in values:
        keyed[key_of(value)].append(value)
    return keyed
