"""Who has how many requests in flight: one token per request, counted once, released once.

A slot belongs to an address while the address is listed or has requests in flight, whichever ends later. So
an endpoint that leaves and comes back finds its live count, an address that only Envoy knows is counted
without being listed, and neither leaves anything behind once its requests have ended.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Token:
    """One request's place in the ledger. Made by `Ledger.take`."""

    __slots__ = ("_ledger", "_slot", "address", "taken_at")

    def __init__(self, ledger: Ledger, address: str, slot: int, taken_at: float) -> None:
        self._ledger = ledger
        self._slot = slot
        self.address = address
        """The endpoint that the request is counted on, or was last counted on."""
        self.taken_at = taken_at
        """When the endpoint was picked, seconds of the caller's monotonic clock."""

    @property
    def held(self) -> bool:
        """Whether it still counts."""
        return self._slot >= 0

    def move(self, address: str) -> None:
        """Count the request on `address`, the endpoint that really serves it. Nothing happens after
        release.
        """
        if self._slot >= 0 and address != self.address:
            before, was = self._slot, self.address
            self._slot = self._ledger._add(address)
            self.address = address
            self._ledger._remove(was, before)

    def release(self) -> None:
        """The request has ended. Only the first call counts, so every way out of a stream may call it."""
        if self._slot >= 0:
            slot, self._slot = self._slot, -1
            self._ledger._remove(self.address, slot)


class Ledger:
    """In-flight counts of a pool, slot by slot."""

    def __init__(self, slots: int = 16) -> None:
        """There is room for so many `slots` at first."""
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._listed: frozenset[str] = frozenset()
        self._in_flight = np.zeros(slots, dtype=np.int64)
        self._picks = np.zeros(slots, dtype=np.int64)

    @property
    def width(self) -> int:
        """Slots that there is room for."""
        return len(self._picks)

    def set_addresses(self, addresses: Iterable[str]) -> NDArray[np.intp]:
        """These addresses are the pool now. Returns their slots in order, valid until the next call."""
        listed = tuple(addresses)
        dropped = self._listed.difference(listed)
        self._listed = frozenset(listed)
        for address in dropped:
            self._recycle(address, self._slots[address])
        return np.array([self._slot_of(address) for address in listed], dtype=np.intp)

    def take(self, address: str, now: float = 0.0) -> Token:
        """Count one request on `address` (listed or not) until the token is released or moved."""
        return Token(self, address, self._add(address), now)

    def in_flight(self, slots: NDArray[np.intp]) -> NDArray[np.int64]:
        """Requests in flight in each of `slots`: a new array."""
        return self._in_flight.take(slots)

    def picks(self, slots: NDArray[np.intp]) -> NDArray[np.int64]:
        """Requests ever counted in each of `slots`: a new array; only differences mean anything."""
        return self._picks.take(slots)

    def counts(self) -> dict[str, int]:
        """Requests in flight by address: every listed one, and others that are not 0.

        May be called from another thread, as a scrape does.
        """
        # Copied in one step, and before the counts are read: the array never loses slots.
        slots = tuple(self._slots.items())
        totals = self._in_flight.tolist()
        return {address: totals[slot] for address, slot in slots}

    def _slot_of(self, address: str) -> int:
        slot = self._slots.get(address)
        if slot is None:
            if not self._free:
                used = len(self._slots)
                if used == self.width:
                    more = np.zeros(used, dtype=np.int64)
                    self._in_flight = np.concatenate([self._in_flight, more])
                    self._picks = np.concatenate([self._picks, more])
                self._free.append(used)
            slot = self._slots[address] = self._free.pop()
        return slot

    def _add(self, address: str) -> int:
        slot = self._slot_of(address)
        self._in_flight[slot] += 1
        self._picks[slot] += 1
        return slot

    def _remove(self, address: str, slot: int) -> None:
        self._in_flight[slot] -= 1
        if address not in self._listed:
            self._recycle(address, slot)

    def _recycle(self, address: str, slot: int) -> None:
        if not self._in_flight[slot]:
            del self._slots[address]
            self._free.append(slot)
