"""Many look-ups at a time in another store, from a pipeline's ``parse`` or ``transform`` on executors.

Spark gives an executor's Python worker one batch after another, in one thread, and a look-up mostly waits for its
answer. `AsyncLookup` therefore sends many look-ups through one asynchronous client, such as ``redis.asyncio``.
`Lookup` is for a store that has none: it looks keys up in threads, each on its own connection from a bounded pool, and
works with any blocking client, such as psycopg2: a client releases Python's lock while it waits for its socket.

The log does not hold the values found: a replay of the same records finds what the store holds at that time.
"""

from epochline.lookup.answers import Answer, Outcome, over_batches
from epochline.lookup.lookup import AsyncLookup, Lookup
from epochline.lookup.pool import PoolLimits

__all__ = ["Answer", "AsyncLookup", "Lookup", "Outcome", "PoolLimits", "over_batches"]
