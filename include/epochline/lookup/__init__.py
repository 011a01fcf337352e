"""Look-ups in another store, many at a time, from a pipeline's own ``parse`` or ``transform`` on executors (E9).

A look-up waits for an answer most of its time. Spark gives an executor's Python worker one batch after another, in one
thread, so that look-ups of a batch would be made one by one. `Lookup` makes them in threads, each with a connection of
its own out of a bounded pool, by clients that block: psycopg2, redis-py, whatever else there is. Threads are enough,
because a client that waits for its socket holds no lock of Python's; and an event loop would need a client written for
it, while the batch waits for its last row either way.

What a look-up finds is not in the log: a replay of the same records finds what the store holds then.
"""

from epochline.lookup.asking import Answer, Outcome
from epochline.lookup.batches import over_batches
from epochline.lookup.lookup import Lookup
from epochline.lookup.pool import PoolLimits

__all__ = ["Answer", "Lookup", "Outcome", "PoolLimits", "over_batches"]
