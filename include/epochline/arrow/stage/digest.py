"""The source digest: an order-free sum of record hashes, equal on every machine and in every process.

It shows whether two tries of a part read the same records (INV-3). It detects accidents, but it is not
cryptographic: records can be made to collide.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochline.arrow.cast.buffers import byte_layout

Hashes = npt.NDArray[np.uint64]

_MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)
_SEED = np.uint64(0x9E3779B97F4A7C15)
# Rows up to this many bytes are hashed word by word, all rows at once. Longer ones are hashed one by one, because a
# value of 10 MB would take a million rounds of the loop.
_SHORT = 1024
_TAIL = np.array([2 ** (8 * n) - 1 for n in range(9)], dtype=np.uint64)
_WORD = "<u8"

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("the digest needs a little-endian machine")


def _fold(state: Hashes, word: Hashes) -> Hashes:
    mixed = (state ^ word) * _MULTIPLIER
    return mixed ^ (mixed >> _SHIFT)


def _fold_bytes(state: Hashes, array: pa.Array) -> Hashes:
    starts, lengths, data = byte_layout(array)
    marks = lengths + 1
    if array.null_count:
        marks[np.asarray(array.is_null())] = 0  # a NULL is not an empty value
    state = _fold(state, marks.astype(np.uint64))
    long_rows = np.flatnonzero(lengths > _SHORT)
    if len(long_rows):
        state = _fold_long(state, long_rows, starts, lengths, data)
        lengths = np.where(lengths > _SHORT, 0, lengths)
    if len(lengths) == 0 or int(lengths.max()) == 0:
        return state
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(data) + 1,), _WORD, padded, 0, (1,))  # the word that begins at each byte
    everywhere = int(lengths.min()) // 8 * 8
    for at in range(0, everywhere, 8):
        state = _fold(state, words[starts + at])
    for at in range(everywhere, int(lengths.max()), 8):
        rows = np.flatnonzero(lengths > at)
        tail = words[starts[rows] + at] & _TAIL[np.minimum(lengths[rows] - at, 8)]
        state[rows] = _fold(state[rows], tail)
    return state


def _fold_long(
    state: Hashes,
    rows: npt.NDArray[np.intp],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    data: memoryview,
) -> Hashes:
    hashed = [
        int.from_bytes(hashlib.blake2b(data[start : start + length], digest_size=8).digest(), "little")
        for start, length in zip(starts[rows].tolist(), lengths[rows].tolist(), strict=True)
    ]
    state[rows] = _fold(state[rows], np.array(hashed, np.uint64))
    return state


def record_hashes(batch: pa.RecordBatch) -> Hashes:
    """A 64-bit hash of each record's topic, partition, offset, key and value.

    Args:
        batch: source records as `epochline.arrow.cast.source.source_batch` gives them.
    """
    state = np.full(batch.num_rows, _SEED, np.uint64)
    topics = batch.column("topic").dictionary_encode()
    by_topic = [hashlib.blake2b(str(topic).encode(), digest_size=8).digest() for topic in topics.dictionary]
    words = np.frombuffer(b"".join(by_topic), _WORD)
    if batch.num_rows:
        state = _fold(state, words[np.asarray(topics.indices)])
    for name in ("partition", "offset"):
        state = _fold(state, np.asarray(batch.column(name)).astype(np.int64).view(np.uint64))
    for name in ("key", "value"):
        state = _fold_bytes(state, batch.column(name))
    return state


def digest(hashes: Hashes) -> int:
    """The order-free digest of records: the sum of their hashes modulo 2**64."""
    return int(hashes.sum(dtype=np.uint64))
