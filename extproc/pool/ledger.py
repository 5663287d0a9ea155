"""Who has how many requests in flight: one token per request, counted once, released once.

The counts are one int64 array: a row per worker process, a column (slot) per endpoint. A worker writes only
its own row and readers add up the column, so the array can lie in memory that processes share and needs no
lock.

A slot belongs to an address while the address is listed or has requests in flight, whichever ends later. So
an endpoint that leaves and comes back finds its live count, an address that only Envoy knows is counted
without being listed, and neither leaves anything behind once its requests have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Cells(Protocol):
    """Where the counts live: an int64 array of shape (workers, slots)."""

    @property
    def array(self) -> NDArray[np.int64]:
        """The counts now. Not to be kept: growing replaces it."""
        ...

    def grow(self, slots: int) -> None:
        """Have at least `slots` columns; the counts stay, new columns are 0."""
        ...


class HeapCells:
    """Counts in the memory of this process."""

    def __init__(self, workers: int = 1, slots: int = 16) -> None:
        self.array = np.zeros((workers, slots), dtype=np.int64)

    def grow(self, slots: int) -> None:
        """As in `Cells`."""
        workers, have = self.array.shape
        if slots > have:
            array = np.zeros((workers, slots), dtype=np.int64)
            array[:, :have] = self.array
            self.array = array


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
    """In-flight counts of a pool as worker `row` writes them."""

    def __init__(self, cells: Cells | None = None, row: int = 0) -> None:
        self._cells: Cells = HeapCells() if cells is None else cells
        self._row = row
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._listed: frozenset[str] = frozenset()
        self._picks = np.zeros(self._cells.array.shape[1], dtype=np.int64)

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
        """Requests in flight of all workers in each of `slots`: a new array."""
        array = self._cells.array
        if len(array) == 1:
            # Adding up rows costs several times the copy of one.
            own: NDArray[np.int64] = array[0].take(slots)
            return own
        total: NDArray[np.int64] = array.take(slots, axis=1).sum(axis=0)
        return total

    def picks(self, slots: NDArray[np.intp]) -> NDArray[np.int64]:
        """Requests that this worker ever counted in each of `slots`: a new array; only differences mean
        anything.
        """
        return self._picks.take(slots)

    def counts(self) -> dict[str, int]:
        """Requests in flight of all workers by address: every listed one, and others that are not 0.

        May be called from another thread, as a scrape does.
        """
        # Copied in one step, and before the totals are read: the array never loses columns.
        slots = tuple(self._slots.items())
        totals = self._cells.array.sum(axis=0).tolist()
        return {address: totals[slot] for address, slot in slots}

    def _slot_of(self, address: str) -> int:
        slot = self._slots.get(address)
        if slot is None:
            if not self._free:
                have = self._cells.array.shape[1]
                used = len(self._slots)
                if used == have:
                    self._cells.grow(max(16, 2 * have))
                    self._picks = np.concatenate([self._picks, np.zeros(max(16, 2 * have) - have, np.int64)])
                self._free.append(used)
            slot = self._slots[address] = self._free.pop()
        return slot

    def _add(self, address: str) -> int:
        slot = self._slot_of(address)
        self._cells.array[self._row, slot] += 1
        self._picks[slot] += 1
        return slot

    def _remove(self, address: str, slot: int) -> None:
        self._cells.array[self._row, slot] -= 1
        if address not in self._listed:
            self._recycle(address, slot)

    def _recycle(self, address: str, slot: int) -> None:
        if not self._cells.array[:, slot].any():
            del self._slots[address]
            self._free.append(slot)
