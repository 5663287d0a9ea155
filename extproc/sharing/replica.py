"""This process among the replicas: what it picks goes out, what others pick comes in."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from ipaddress import ip_address
from itertools import count

import structlog

from extproc.address import Address
from extproc.config import SharingConfig
from extproc.picker import Picked
from extproc.sharing import knowledge
from extproc.sharing.batches import Writer
from extproc.sharing.channels import Channels
from extproc.sharing.inbox import Inbox
from extproc.sharing.listener import Listener
from extproc.sharing.memory import Memory
from extproc.sharing.metrics import SharingMetrics
from extproc.sharing.names import LookUp, Names, look_up
from extproc.sharing.outbox import Outbox
from extproc.sharing.pace import PACE, Pace
from extproc.sharing.peer import Peer, Told
from extproc.sharing.peers import Peers
from extproc.sharing.picks_pb2 import Receipt
from extproc.sharing.turns import in_turns
from extproc.tls import Certificates

_log = structlog.get_logger(__name__)


class Replica:
    """Sharing as a whole, for `extproc.run`.

    `memories` gives the pools that learn, by name. `certificates` None, or `plaintext` in the configuration:
    plaintext. `clock` is that of the picks' `at`, monotonic seconds; `draw` gives the instance its name and
    spreads calls.
    """

    def __init__(
        self,
        config: SharingConfig,
        memories: Callable[[], Mapping[str, Memory]],
        metrics: SharingMetrics,
        certificates: Certificates | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: random.Random,
        look_up: LookUp = look_up,
        pace: Pace = PACE,
    ) -> None:
        self._config = config
        self._memories = memories
        self._metrics = metrics
        self._certificates = None if config.plaintext else certificates
        self._clock = clock
        self._draw = draw
        self._pace = pace
        self._began = clock()
        self._instance = draw.getrandbits(64) or 1
        self._numbers = count(1)
        self._outbox = Outbox()
        self._inbox = Inbox(memories, clock, metrics, self._instance)
        self._channels = Channels(self._certificates)
        self._met = asyncio.Event()
        self._ready = asyncio.Event()
        names = (config.service,) if config.service is not None else config.peers or ()
        self._peers = Peers(Names(names, look_up), self._peer, pace.look_up)
        self._listener = Listener(self._inbox.take, self._receipt, self._known)
        self._tasks: list[asyncio.Task[None]] = []
        metrics.watch(self._peers.counts)

    def tell(self, pick: Picked) -> None:
        """Another pick was made here. On the path of a request: only queues it."""
        self._outbox.tell(pick)

    def ready(self) -> None:
        """The pools know their endpoints, so what peers know can be learnt. Calls after the first do
        nothing."""
        self._ready.set()

    @property
    def peers(self) -> int:
        """How many other replicas are connected."""
        return len(self._peers.connected)

    async def start(self) -> Address:
        """Listen, and begin to look for peers.

        Returns the address listened on. Raises `extproc.server.ListenError`.
        """
        credentials = None if self._certificates is None else self._certificates.server_credentials()
        bound = await self._listener.start(self._config.listen, credentials)
        if credentials is None and not (self._config.plaintext or _is_loopback(bound.host)):
            _log.warning(
                "picks are shared in plaintext: who reaches this port sees and sends block keys; set tls with"
                " clientCa, or let a NetworkPolicy admit replicas only and set sharing.plaintext",
                listen=str(bound),
            )
        self._tasks = [
            asyncio.create_task(self._peers.run(), name="peers"),
            asyncio.create_task(self._tell(), name="picks to peers"),
            asyncio.create_task(self._learn(), name="warm-up"),
        ]
        return bound

    async def stop(self) -> None:
        """Say and hear nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.stop()

    def _peer(self, address: str) -> Peer:
        return Peer(
            address,
            instance=self._instance,
            channels=self._channels,
            metrics=self._metrics,
            clock=self._clock,
            draw=self._draw,
            met=self._met.set,
            pace=self._pace,
        )

    def _receipt(self) -> bytes:
        running_ms = round(1000.0 * (self._clock() - self._began))
        return Receipt(instance=self._instance, running_ms=running_ms).SerializeToString()

    def _known(self, question: bytes) -> AsyncIterator[bytes]:
        return knowledge.answer(question, self._instance, self._memories())

    async def _tell(self) -> None:
        # From a random moment on: replicas that start together do not all send at once.
        await asyncio.sleep(self._pace.batch * self._draw.random())
        while True:
            waiting, dropped = self._outbox.drain()
            self._metrics.dropped("outbox_full", dropped)
            learning = self._memories()
            picks = [pick for pick in waiting if pick.pool in learning]
            connected, unreachable = self._peers.counts()
            self._metrics.dropped("undelivered", unreachable * len(picks))
            if picks and connected:
                try:
                    self._peers.tell(await self._batch(picks))
                except Exception as error:
                    self._metrics.dropped("failed", len(picks))
                    _log.error("picks cannot be told", error=type(error).__name__)
            await asyncio.sleep(self._pace.batch)

    async def _batch(self, picks: list[Picked]) -> Told:
        made = self._clock()
        writer = Writer(self._instance, self._numbers, made)
        messages = [full async for pick in in_turns(picks) if (full := writer.add(pick))]
        if last := writer.finish():
            messages.append(last)
        return Told(tuple(messages), made, picks[0].at)

    async def _learn(self) -> None:
        await self._ready.wait()
        try:
            async with asyncio.timeout(self._pace.meet):
                await self._met.wait()
        except TimeoutError:
            _log.info("no peer to learn from", seconds=self._pace.meet)
            return
        await asyncio.sleep(self._pace.gather)
        peers = self._peers.connected
        if peers:
            oldest = min(peers, key=lambda peer: peer.began)
            await knowledge.ask(oldest, self._inbox, self._pace.answer)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
