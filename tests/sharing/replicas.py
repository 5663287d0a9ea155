"""Replicas in one process, each with a real listener and real connections, and a broken network between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from prometheus_client import CollectorRegistry

from extproc.address import parse_address
from extproc.config import SharingConfig
from extproc.sharing.metrics import SharingMetrics
from extproc.sharing.names import LookUp, look_up
from extproc.sharing.pace import Pace
from extproc.sharing.replica import Replica
from extproc.tls import Certificates
from tests.envoy.process import eventually, free_address
from tests.sharing.traffic import ENDPOINTS, Notes, pick

FAST = Pace(
    batch=0.05,
    confirm=1.0,
    idle=0.2,
    first_pause=0.02,
    longest_pause=0.1,
    look_up=0.1,
    meet=10.0,
    gather=0.1,
    answer=5.0,
)


class Node:
    """One replica that can be ended and begun anew at its address."""

    def __init__(
        self,
        address: str,
        peers: Sequence[str],
        *,
        certificates: Certificates | None = None,
        plaintext: bool = False,
        pace: Pace = FAST,
        look_up: LookUp = look_up,
    ) -> None:
        self.address = address
        self.notes = Notes()
        self._peers = peers
        self._certificates = certificates
        self._plaintext = plaintext
        self._pace = pace
        self._look_up = look_up
        self.registry = CollectorRegistry()
        self.replica: Replica | None = None

    async def start(self) -> None:
        """Begin, knowing nothing, and ask nobody until it is `ready`."""
        self.notes = Notes()
        self.registry = CollectorRegistry()
        self.replica = Replica(
            SharingConfig.model_validate(
                {"listen": self.address, "peers": list(self._peers), "plaintext": self._plaintext}
            ),
            lambda: {"llama": self.notes},
            SharingMetrics(self.registry),
            self._certificates,
            draw=random.Random(),
            look_up=self._look_up,
            pace=self._pace,
        )
        bound = await self.replica.start()
        assert bound == parse_address(self.address)

    def ready(self) -> None:
        assert self.replica is not None
        self.replica.ready()

    async def stop(self) -> None:
        if self.replica is not None:
            await self.replica.stop()
            self.replica = None

    def tell(self, text: str, address: str = ENDPOINTS[0]) -> None:
        assert self.replica is not None
        self.replica.tell(pick(text, address, at=asyncio.get_running_loop().time()))

    @property
    def peers(self) -> int:
        return 0 if self.replica is None else self.replica.peers

    def heard(self, text: str) -> int:
        """How often this prompt was heard of."""
        wanted = pick(text).keys
        return sum(keys == wanted for keys, _ in self.notes.learnt)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"extproc_sharing_{name}", labels) or 0.0

    async def hears(self, text: str) -> None:
        await eventually(lambda: self.heard(text) > 0, f"{self.address} hears {text!r}")

    async def meets(self, peers: int) -> None:
        await eventually(lambda: self.peers == peers, f"{self.address} has {peers} peers")


@asynccontextmanager
async def nodes(number: int, *, pace: Pace = FAST) -> AsyncIterator[list[Node]]:
    """So many replicas with one list of peers, all connected."""
    addresses = [free_address() for _ in range(number)]
    async with running(*(Node(address, addresses, pace=pace) for address in addresses)) as found:
        for node in found:
            await node.meets(number - 1)
        yield found


@asynccontextmanager
async def running(*made: Node) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        for node in made:
            stack.push_async_callback(node.stop)
            await node.start()
        yield list(made)


class Network:
    """A stretch of network before a replica: connections to `address` lead to `target`.

    It can be cut (connections end, new ones are refused) and stalled (what is sent goes nowhere), and counts
    the bytes that pass.
    """

    def __init__(self, target: str) -> None:
        self.address = free_address()
        self.forward = self.backward = 0
        self.backward_limit: int | None = None
        """Bytes after which nothing comes back any more."""
        self._target = target
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._connections: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def mend(self) -> None:
        """Let everything pass again."""
        self._flowing.set()
        if self._server is None:
            host, port = self.address.rsplit(":", 1)
            self._server = await asyncio.start_server(self._connected, host, int(port))

    def stall(self) -> None:
        self._flowing.clear()

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._connections.clear()

    async def __aenter__(self) -> Network:
        await self.mend()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.cut()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append(asyncio.create_task(self._join(reader, writer)))

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            host, port = self._target.rsplit(":", 1)
            onward, far = await asyncio.open_connection(host, int(port))
            ends.append(far)
            await asyncio.gather(self._pump(reader, far, True), self._pump(onward, writer, False))
        finally:
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, forward: bool) -> None:
        while data := await reader.read(1 << 16):
            await self._flowing.wait()
            if forward:
                self.forward += len(data)
            else:
                self.backward += len(data)
                if self.backward_limit is not None and self.backward > self.backward_limit:
                    self._flowing.clear()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()
