"""What peers say is checked and handed to the pools. Whatever it is, it never raises.

Only the pools and endpoints that this replica knows by itself are ever entered: a peer can say where prompts
were sent, and nothing that would send a request anywhere else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import structlog

from extproc.sharing.batches import SCHEME, Heard, MalformedError, picks, read
from extproc.sharing.memory import Memory
from extproc.sharing.metrics import SharingMetrics
from extproc.sharing.picks_pb2 import Batch
from extproc.sharing.turns import in_turns

STALE_S = 60.0
"""Seconds after which a pick says nothing any more of how busy its endpoint is. Senders keep nothing that
long."""
MAX_KEYS_PER_S = 1_048_576
"""Block keys entered in one second at most: what 25,000 prompts of 8 KB have, more than replicas that run at
full load pick together."""
SENDERS = 256
"""Instances whose sequence numbers are remembered, the last ones. In memory some 200 KB."""
SEQUENCES = 64
"""Numbers remembered of each: more than it has on its way at once."""

_log = structlog.get_logger(__name__)


class Inbox:
    """Enters messages into the pools, one after the other, a little at a time.

    `memories` gives the pools that learn, by name; `clock` monotonic seconds; `instance` is this process.
    """

    def __init__(
        self,
        memories: Callable[[], Mapping[str, Memory]],
        clock: Callable[[], float],
        metrics: SharingMetrics,
        instance: int,
    ) -> None:
        self._memories = memories
        self._clock = clock
        self._metrics = metrics
        self._instance = instance
        self._received = _Received()
        self._allowance = _Allowance(MAX_KEYS_PER_S)
        # Several messages at once would each take their turns, and requests would wait for all of these.
        self._one_at_a_time = asyncio.Lock()
        self._failed = False

    async def take(self, data: bytes) -> None:
        """Enter the picks of a message that has come just now. Returns when it is done."""
        arrived = self._clock()
        self._metrics.received(len(data))
        async with self._one_at_a_time:
            await self._enter(data, arrived)

    async def learn(self, data: bytes) -> int:
        """Enter a message of what a peer knows, from its end: where prompts were sent, and not when.

        Returns how many.
        """
        self._metrics.received(len(data))
        async with self._one_at_a_time:
            return await self._enter(data, None)

    async def _enter(self, data: bytes, arrived: float | None) -> int:
        batch = self._read(data)
        if batch is None:
            return 0
        entered, memories = 0, self._memories()
        for part in batch.pools:
            memory = memories.get(part.pool)
            if memory is None:
                self._metrics.dropped("unknown_pool", len(part.picks))
                continue
            try:
                heard = picks(batch, part)
                if arrived is None:
                    heard = reversed(list(heard))  # what is most recent is told first and learnt last
                entered += await self._enter_part(heard, part.pool, memory, arrived)
            except MalformedError as error:
                self._refuse("malformed", str(error))
                break
        return entered

    async def _enter_part(
        self, heard: Iterator[Heard], pool: str, memory: Memory, arrived: float | None
    ) -> int:
        entered, dropped = 0, self._metrics.dropped
        addresses, endpoints = memory.addresses, frozenset(memory.addresses)
        try:
            async for pick in in_turns(heard):
                if memory.addresses is not addresses:  # they changed while others had their turn
                    addresses, endpoints = memory.addresses, frozenset(memory.addresses)
                if pick.address not in endpoints:
                    dropped("unknown_endpoint")
                elif pick.age > STALE_S:
                    dropped("stale")
                elif not self._allowance.take(len(pick.keys.keys), self._clock()):
                    dropped("too_many")
                else:
                    try:
                        tokens = memory.learn(pick.keys, pick.address)
                        if arrived is not None:
                            memory.heard(pick.address, tokens, arrived - pick.age)
                        entered += 1
                    except Exception as error:
                        self._fail(error)
        finally:
            if arrived is not None:
                self._metrics.heard(pool, entered)
            else:
                self._metrics.learnt(entered)
        return entered

    def _read(self, data: bytes) -> Batch | None:
        try:
            batch = read(data)
        except MalformedError as error:
            self._refuse("malformed", str(error))
            return None
        if batch.instance == self._instance:
            self._refuse("own")
        elif batch.scheme != SCHEME:
            self._refuse("other_scheme")
        elif batch.sequence and not self._received.first(batch.instance, batch.sequence):
            self._refuse("duplicate")
        else:
            return batch
        return None

    def _refuse(self, reason: str, detail: str = "") -> None:
        self._metrics.refused(reason)
        if reason == "malformed":
            _log.debug("message of a peer ignored", reason=detail)

    def _fail(self, error: Exception) -> None:
        """An error of ours, which must not end the connection, and is said once."""
        self._metrics.dropped("failed")
        if not self._failed:
            self._failed = True
            _log.error("picks of a peer cannot be entered", error=type(error).__name__)


class _Received:
    """Which messages have been received. In memory bounded, whatever peers send."""

    def __init__(self) -> None:
        self._senders: dict[int, deque[int]] = {}

    def first(self, instance: int, sequence: int) -> bool:
        """Whether this one comes for the first time, as far as is remembered."""
        numbers = self._senders.pop(instance, None)
        if numbers is None:
            if len(self._senders) >= SENDERS:
                del self._senders[next(iter(self._senders))]
            numbers = deque(maxlen=SEQUENCES)
        self._senders[instance] = numbers
        if sequence in numbers:
            return False
        numbers.append(sequence)
        return True


class _Allowance:
    """So many a second, and no more at once."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._at: float | None = None

    def take(self, amount: int, now: float) -> bool:
        """Whether so many are allowed now."""
        if self._at is not None:
            self._left = min(self._per_second, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True
