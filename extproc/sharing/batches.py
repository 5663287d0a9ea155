"""Picks to messages and back (picks.proto). Pure: no clock, no IO.

What a prompt has in common with an earlier one of its message is not written again: a pick says how many of
its first block keys are those of which other pick. A key stands for all content up to there, so one look-up
per step of a binary search finds how many these are.

A message is bounded in each dimension that a reader pays for, and a reader refuses what exceeds the bounds:
bytes, picks, and block keys after those in common are written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from operator import sub
from typing import NamedTuple

from google.protobuf.message import DecodeError
from xxhash import xxh3_64

from extproc.picker import Picked
from extproc.prefix import MAX_KEYS, BlockKeys, block_keys
from extproc.prompt import TEXT, TOKENS, Prompt, Scope, Segment
from extproc.sharing.picks_pb2 import Batch, Pick, PoolPicks

MESSAGE_BYTES = 128 * 1024
"""A message is closed when it has about so many bytes: a receiver parses it in well under a millisecond."""
MAX_MESSAGE_BYTES = 256 * 1024
"""Bytes of the largest message that is read. One pick more than `MESSAGE_BYTES` fits easily."""
MAX_PICKS = 4_096
"""Picks in a message at most."""
MAX_MESSAGE_KEYS = 131_072
"""Block keys in a message at most, those in common counted for each pick."""
MAX_CONTENT = 1 << 26
"""Bytes of content that a pick's block keys cover at most: 1,024 blocks have 4 KB each at most, see
`extproc.prefix`."""

_KEY_BYTES = 10
"""A key as fixed64 and its step, which takes one byte or two."""
_PICK_BYTES = 16
"""A pick beside its keys, at most about."""
_MOST_MS = (1 << 32) - 1


class MalformedError(Exception):
    """A message that no replica makes; the text says in what way, and holds nothing of the message."""


class Message(NamedTuple):
    """A message to peers."""

    data: bytes
    picks: int


class Heard(NamedTuple):
    """A pick of another replica."""

    keys: BlockKeys
    """Without `segments`: these are not told."""
    address: str
    age: float
    """Seconds from the pick to when its message was sent."""


class Writer:
    """Writes picks into messages, in the order in which they are added.

    `instance` is this process, `numbers` gives a sequence number for each message, `made` is now, on the
    clock of the picks' `at`.
    """

    def __init__(self, instance: int, numbers: Iterator[int], made: float) -> None:
        self._instance = instance
        self._numbers = numbers
        self._made = made
        self._begin()

    def add(self, pick: Picked) -> Message | None:
        """Add one pick, with one block key at least. Returns the message before it, if that is full now."""
        full = None
        length = len(pick.keys.keys)
        if self._bytes >= MESSAGE_BYTES or self._picks == MAX_PICKS or self._keys + length > MAX_MESSAGE_KEYS:
            full = self.finish()
        part = self._parts.get(pick.pool)
        if part is None:
            part = self._parts[pick.pool] = _Part(self._batch.pools.add(pool=pick.pool))
        age = min(max(0, round(1000.0 * (self._made - pick.at))), _MOST_MS)
        self._bytes += _PICK_BYTES + _KEY_BYTES * part.add(pick.keys, pick.address, age)
        self._picks += 1
        self._keys += length
        return full

    def finish(self) -> Message | None:
        """The message with the picks that were added last; None if there are none. The next one begins."""
        if not self._picks:
            return None
        self._batch.sequence = next(self._numbers)
        message = Message(self._batch.SerializeToString(), self._picks)
        self._begin()
        return message

    def _begin(self) -> None:
        self._batch = Batch(instance=self._instance, scheme=SCHEME)
        self._parts: dict[str, _Part] = {}
        self._bytes = self._picks = self._keys = 0


class _Part:
    """The picks of one pool in a message."""

    def __init__(self, target: PoolPicks) -> None:
        self._target = target
        self._endpoints: dict[str, int] = {}
        self._chains: list[BlockKeys] = []
        self._holder: dict[int, int] = {}
        """By block key: a pick that has it."""

    def add(self, chain: BlockKeys, address: str, age_ms: int) -> int:
        """Returns how many keys had to be written."""
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            endpoint = self._endpoints[address] = len(self._endpoints)
            self._target.endpoints.append(address)
        like, shared = self._in_common(chain)
        keys = chain.keys[shared:]
        steps = list(map(sub, chain.ends, [0, *chain.ends]))[shared:]
        self._target.picks.add(
            endpoint=endpoint, age_ms=age_ms, like=like, shared=shared, keys=keys, ends=steps
        )
        self._holder.update(dict.fromkeys(keys, len(self._chains)))
        self._chains.append(chain)
        return len(keys)

    def _in_common(self, chain: BlockKeys) -> tuple[int, int]:
        """A pick that begins with the same keys, and how many these are."""
        keys, holder = chain.keys, self._holder
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in holder:
                low = middle
            else:
                high = middle - 1
        if not low:
            return 0, 0
        like = holder[keys[low - 1]]
        other = self._chains[like]
        # Equal keys mean equal content up to there; two chains that only share a hash are written in full.
        if other.keys[:low] != keys[:low] or other.ends[:low] != chain.ends[:low]:
            return 0, 0
        return like, low


def waited(message: bytes, seconds: float) -> bytes:
    """The message, saying that it was made so long ago.

    Of a field that comes twice the last value counts, so it is just appended
    (https://protobuf.dev/programming-guides/encoding/#last-one-wins): one message serves every peer.
    """
    return message + Batch(waited_ms=min(max(0, round(1000.0 * seconds)), _MOST_MS)).SerializeToString()


def read(data: bytes) -> Batch:
    """A message, not yet looked into. Raises `MalformedError` if it is none, or exceeds the bounds."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MalformedError("too many bytes")
    try:
        batch = Batch.FromString(data)
    except DecodeError:
        # Without its text, which may hold bytes of the message.
        raise MalformedError("not a batch") from None
    if len(batch.pools) > MAX_PICKS or sum(len(part.picks) for part in batch.pools) > MAX_PICKS:
        raise MalformedError("too many picks")
    if len({part.pool for part in batch.pools}) < len(batch.pools):
        raise MalformedError("a pool that is named twice")
    return batch


def picks(batch: Batch, part: PoolPicks) -> Iterator[Heard]:
    """The picks of one pool in a message, in their order. Raises `MalformedError` where one of them is."""
    if len(part.endpoints) > len(part.picks):
        raise MalformedError("more endpoints than picks")
    endpoints = part.endpoints[:]
    again = {pick.like for pick in part.picks if pick.shared}
    chains: dict[int, BlockKeys] = {}
    """By index in the message: those that a later pick begins like."""
    left = MAX_MESSAGE_KEYS
    for index, pick in enumerate(part.picks):
        if pick.endpoint >= len(endpoints):
            raise MalformedError("an endpoint that is not in the table")
        chain = _chain(pick, chains)
        left -= len(chain.keys)
        if left < 0:
            raise MalformedError("too many block keys in one message")
        if index in again:
            chains[index] = chain
        yield Heard(chain, endpoints[pick.endpoint], (pick.age_ms + batch.waited_ms) / 1000.0)


def _chain(pick: Pick, chains: Mapping[int, BlockKeys]) -> BlockKeys:
    shared, written, steps = pick.shared, pick.keys, pick.ends
    if len(written) != len(steps):
        raise MalformedError("not as many ends as block keys")
    if not 0 < shared + len(written) <= MAX_KEYS:
        raise MalformedError("too many block keys in one pick, or none")
    keys, ends = written[:], list(accumulate(steps[:]))
    if shared:
        other = chains.get(pick.like)
        if other is None or shared > len(other.keys):
            raise MalformedError("block keys in common with a pick that has not so many")
        before = other.ends[shared - 1]
        keys, ends = other.keys[:shared] + keys, other.ends[:shared] + [before + end for end in ends]
    if ends[-1] > MAX_CONTENT:
        raise MalformedError("more content than block keys cover")
    return BlockKeys(keys, ends)


def _scheme() -> int:
    """A digest of how block keys are made: the keys of one prompt of many kinds of content."""
    sample = Prompt(
        "sample",
        Scope(model="model", salt="salt"),
        [
            Segment(TEXT, b"system " * 2_000, True),
            Segment(TEXT, b"question " * 100, True),
            Segment(TOKENS, bytes(range(256)) * 8, True),
            Segment(b"fields", b"", True),
            Segment(TEXT, b"cut " * 500, False),
        ],
    )
    digest = xxh3_64()
    for key, end in zip(*block_keys(sample)[:2], strict=True):
        digest.update(b"%d %d\n" % (key, end))
    return digest.intdigest()


SCHEME = _scheme()
"""Replicas whose versions make different block keys ignore each other's: none would ever match."""
