"""One other replica: the connection to it, and what waits to be told to it.

Each second a call tells what was picked since, and its answer confirms it; if it is much, one call after the
other does. Meanwhile batches wait here, a few at most: old picks are worth little. A call that is not
confirmed in time, or fails, costs the picks that wait; the connection is then made anew after a pause that
grows with each failure. So a peer that is gone, stalled or behind a broken network costs a bounded amount of
memory, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import grpc
import structlog

from extproc.sharing.batches import Message, waited
from extproc.sharing.channels import Channels, Opened
from extproc.sharing.metrics import SharingMetrics
from extproc.sharing.pace import Pace
from extproc.sharing.picks_pb2 import Question, Receipt

MAX_BATCHES = 5
"""Batches that wait for a peer at most, one made each second."""

_log = structlog.get_logger(__name__)


class Told(NamedTuple):
    """A batch for all peers."""

    messages: tuple[Message, ...]
    made: float
    """When, in seconds of the monotonic clock."""
    oldest: float
    """When its oldest pick was made, on the same clock."""

    @property
    def picks(self) -> int:
        """How many picks it holds."""
        return sum(message.picks for message in self.messages)


class Peer:
    """The replica at `address`, `ip:port`.

    `instance` is this process, `clock` gives monotonic seconds, `draw` spreads attempts to connect. `met` is
    called when the peer has answered for the first time since it could not be reached.
    """

    def __init__(
        self,
        address: str,
        *,
        instance: int,
        channels: Channels,
        metrics: SharingMetrics,
        clock: Callable[[], float],
        draw: random.Random,
        met: Callable[[], None],
        pace: Pace,
    ) -> None:
        self.address = address
        self.answers_as: int | None = None
        """The instance that answers there; None: nobody does."""
        self.began = 0.0
        """When that instance began, by the clock of this one."""
        self._instance = instance
        self._channels = channels
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._met = met
        self._pace = pace
        self._opened: Opened | None = None
        self._batches: deque[Told] = deque()
        self._waiting = asyncio.Event()
        self._complaint = ""
        self._failures = 0

    @property
    def is_own(self) -> bool:
        """Whether this process itself answers there."""
        return self.answers_as == self._instance

    @property
    def connected(self) -> bool:
        """Whether another process answers there."""
        return self.answers_as is not None and not self.is_own

    def offer(self, batch: Told) -> None:
        """Let a batch wait. Never waits itself: the oldest of too many is dropped."""
        self._batches.append(batch)
        if len(self._batches) > MAX_BATCHES:
            self._metrics.dropped("peer_slow", self._batches.popleft().picks)
        self._waiting.set()

    async def run(self) -> None:
        """Keep the connection until cancelled, or until this process itself answers."""
        while not self.is_own:
            try:
                await self._connection()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # gRPC raises it also where a call was cancelled by something else than this task.
                await self._pause(error)
            except Exception as error:
                await self._pause(error)

    async def _connection(self) -> None:
        """One connection, until it fails, the certificates change, or this process itself answers."""
        self._opened = opened = self._channels.open(self.address)
        try:
            await self._call(opened, b"")
            self._failures = 0
            while not (self.is_own or self._channels.outdated(opened)):
                await self._tell(opened, await self._next())
        finally:
            self._opened = None
            await opened.channel.close()

    async def _pause(self, error: BaseException) -> None:
        self._failures += 1
        self._lost(error)
        await asyncio.sleep(pause(self._failures, self._pace, self._draw))

    async def known(self, limit: int, seconds: float) -> AsyncIterator[bytes]:
        """Messages with what the peer knows, of `limit` prompts at most. Raises `grpc.aio.AioRpcError`, also
        when it is not over within `seconds`; ConnectionError while nobody answers.
        """
        if self._opened is None:
            raise ConnectionError("not connected")
        async for message in self._opened.known(Question(limit=limit).SerializeToString(), timeout=seconds):
            yield message

    async def _next(self) -> Sequence[Told]:
        """The batches that wait; none after a while without any."""
        try:
            async with asyncio.timeout(self._pace.idle):
                await self._waiting.wait()
        except TimeoutError:
            return ()
        self._waiting.clear()
        batches = tuple(self._batches)
        self._batches.clear()
        return batches

    async def _tell(self, opened: Opened, batches: Sequence[Told]) -> None:
        left = sum(batch.picks for batch in batches)
        try:
            for batch in batches:
                for message in batch.messages:
                    data = waited(message.data, self._clock() - batch.made)
                    await self._call(opened, data)
                    self._metrics.sent(message.picks, len(data))
                    left -= message.picks
                self._metrics.lagged(self._clock() - batch.oldest)
            if not batches:
                await self._call(opened, b"")
        except BaseException:
            self._metrics.dropped("undelivered", left)
            raise

    async def _call(self, opened: Opened, data: bytes) -> None:
        receipt = Receipt.FromString(await opened.tell(data, timeout=self._pace.confirm))
        self.began = self._clock() - receipt.running_ms / 1000.0
        if self.answers_as != receipt.instance:
            self.answers_as = receipt.instance
            self._complaint = ""
            if not self.is_own:
                _log.info("peer connected", peer=self.address, instance=f"{receipt.instance:016x}")
                self._met()

    def _lost(self, error: BaseException) -> None:
        reason = error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
        detail = error.details() if isinstance(error, grpc.aio.AioRpcError) else ""
        self.answers_as = None
        self._metrics.dropped("undelivered", sum(batch.picks for batch in self._batches))
        self._batches.clear()
        self._waiting.clear()
        if reason != self._complaint:
            self._complaint = reason
            _log.info("peer cannot be reached; trying again", peer=self.address, reason=reason, detail=detail)


def pause(failures: int, pace: Pace, draw: random.Random) -> float:
    """Seconds to wait after so many failures in a row, one at least."""
    longest = min(pace.longest_pause, pace.first_pause * 2.0 ** min(failures - 1, 16))
    return longest * (1.0 - draw.random() / 2.0)
