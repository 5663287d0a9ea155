"""A pool as sharing sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from extproc.pool.pool import Pool
from extproc.prefix import BlockKeys
from extproc.routing.prefix_aware import PrefixAware


class Memory(Protocol):
    """What one pool remembers of where prompts were sent. Times are seconds of the process's monotonic
    clock."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The pool's endpoints."""
        ...

    def learn(self, keys: BlockKeys, address: str) -> float:
        """Another replica sent this prompt to this endpoint. Returns the tokens to be computed there."""
        ...

    def heard(self, address: str, tokens: float, at: float) -> None:
        """Another replica sent so many tokens to be computed to this endpoint at that time."""
        ...

    def known(self, limit: int) -> Iterator[tuple[list[int], list[int], str]]:
        """Block keys, their ends and the endpoint of at most `limit` prompts, most recent first."""
        ...


class PoolMemory:
    """A pool and its strategy as one `Memory`."""

    __slots__ = ("_pool", "heard", "known", "learn")

    def __init__(self, pool: Pool, strategy: PrefixAware) -> None:
        self._pool = pool
        self.heard = pool.heard
        self.learn = strategy.learn
        self.known = strategy.known

    @property
    def addresses(self) -> tuple[str, ...]:
        """As in `Memory`."""
        return self._pool.addresses
