"""The other replicas that there are: found by name, each connected to, forgotten when they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from extproc.sharing.names import Names
from extproc.sharing.peer import Peer, Told


class _Running(NamedTuple):
    peer: Peer
    task: asyncio.Task[None]


class Peers:
    """Peers at all addresses of `names`, which are looked up every `seconds`; `make` makes one for an
    address."""

    def __init__(self, names: Names, make: Callable[[str], Peer], seconds: float) -> None:
        self._names = names
        self._make = make
        self._seconds = seconds
        self._running: dict[str, _Running] = {}

    @property
    def connected(self) -> list[Peer]:
        """Each process that can be told something, once, however many addresses it has."""
        found: dict[int, Peer] = {}
        for address in sorted(self._running):
            peer = self._running[address].peer
            if peer.connected and peer.answers_as is not None:
                found.setdefault(peer.answers_as, peer)
        return list(found.values())

    def counts(self) -> tuple[int, int]:
        """How many processes are connected, and how many addresses are unreachable. Safe from another
        thread."""
        peers = [running.peer for running in tuple(self._running.values())]
        others = [peer.answers_as for peer in peers if not peer.is_own]
        return len(set(others) - {None}), others.count(None)

    def tell(self, batch: Told) -> None:
        """Let every connected peer have this batch. Never waits."""
        for peer in self.connected:
            peer.offer(batch)

    async def run(self) -> None:
        """Follow the names until cancelled."""
        try:
            while True:
                await self._follow(await self._names.addresses())
                await asyncio.sleep(self._seconds)
        finally:
            await self._follow(frozenset())

    async def _follow(self, addresses: frozenset[str]) -> None:
        gone = [self._running.pop(address) for address in self._running.keys() - addresses]
        for running in gone:
            running.task.cancel()
        for address in sorted(addresses - self._running.keys()):
            peer = self._make(address)
            self._running[address] = _Running(peer, asyncio.create_task(peer.run(), name=f"peer {address}"))
        await asyncio.gather(*(running.task for running in gone), return_exceptions=True)
