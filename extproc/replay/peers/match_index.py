"""Which endpoint was sent which blocks, with a limit per endpoint: what prefix-scoring routers keep."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from extproc.pool.snapshot import Snapshot
from extproc.replay.policy import Policy


class MatchIndex:
    """Block keys per address in least-recently-used order, at most `capacity` each."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: dict[str, OrderedDict[int, None]] = {}

    def match(self, address: str, keys: Sequence[int]) -> int:
        """How many leading keys the address was sent and has not lost since."""
        blocks = self._blocks.get(address)
        if blocks is None:
            return 0
        count = 0
        for key in keys:
            if key not in blocks:
                break
            count += 1
        return count

    def add(self, address: str, keys: Sequence[int]) -> None:
        """The address was sent these blocks."""
        blocks = self._blocks.setdefault(address, OrderedDict())
        for key in reversed(keys):
            blocks[key] = None
            blocks.move_to_end(key)
        while len(blocks) > self._capacity:
            blocks.popitem(last=False)

    def forget_all_but(self, addresses: Sequence[str]) -> None:
        """Only these addresses are left."""
        for address in self._blocks.keys() - set(addresses):
            del self._blocks[address]

    def size(self, address: str) -> int:
        """Blocks held for an address."""
        return len(self._blocks.get(address, ()))


class Matching(Policy):
    """A policy that asks which endpoint was sent most of a prompt. `capacity`: blocks per endpoint."""

    def __init__(self, capacity: int) -> None:
        self._index = MatchIndex(capacity)
        self._of: tuple[str, ...] = ()

    def matches(self, keys: Sequence[int], endpoints: Snapshot) -> list[int]:
        """For each endpoint, how many leading keys it was sent."""
        if endpoints.addresses is not self._of:
            self._of = endpoints.addresses
            self._index.forget_all_but(endpoints.addresses)
        return [self._index.match(address, keys) for address in endpoints.addresses]

    def blocks_of(self, address: str) -> int:
        """Blocks held for an endpoint."""
        return self._index.size(address)

    def send(self, keys: Sequence[int], address: str) -> str:
        """The prompt goes there. Returns the address."""
        self._index.add(address, keys)
        return address
