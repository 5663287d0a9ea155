"""The KV cache of one engine: blocks by key, held by running requests or idle in least-recently-used order.

The rules are vLLM's (`vllm/v1/core/block_pool.py`, `kv_cache_manager.py`): a block that a running request
uses is never evicted; blocks of a finished request stay cached and become the youngest of the idle ones, the
deepest block of a chain being older than its parents, so that a chain is evicted from its end; idle blocks
count as free space.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """Blocks of one engine, `capacity` in all.

    Besides keyed blocks a request holds *private* ones, which nobody can share: a last block that is not
    full, and blocks of output tokens. They are only counted.
    """

    __slots__ = ("_held", "_idle", "_private", "capacity", "evicted")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        """Blocks in all."""
        self.evicted = 0
        """Keyed blocks evicted so far."""
        self._held: dict[int, int] = {}  # key -> running requests that use it
        self._idle: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._private = 0

    @property
    def in_use(self) -> int:
        """Blocks that running requests hold; vLLM's `kv_cache_usage_perc` is this over the capacity."""
        return len(self._held) + self._private

    @property
    def cached(self) -> int:
        """Keyed blocks that are present, held or idle."""
        return len(self._held) + len(self._idle)

    def __contains__(self, key: int) -> bool:
        return key in self._held or key in self._idle

    def match(self, keys: Sequence[int], limit: int) -> int:
        """Return how many leading `keys` are present, at most `limit`."""
        held, idle = self._held, self._idle
        count = 0
        for key in keys[:limit] if limit < len(keys) else keys:
            if key not in held and key not in idle:
                break
            count += 1
        return count

    def acquire(self, keys: Sequence[int], private: int) -> bool:
        """Hold all `keys` and `private` more blocks, evicting idle blocks as needed; False, and no change,
        if no room."""
        held, idle = self._held, self._idle
        used = len(held) + self._private + private
        if used + len(keys) > self.capacity and used + sum(key not in held for key in keys) > self.capacity:
            return False
        for key in keys:
            if key in held:
                held[key] += 1
            else:
                idle.pop(key, None)
                held[key] = 1
        self._private += private
        room = self.capacity - len(held) - self._private
        while len(idle) > room:
            idle.popitem(last=False)
            self.evicted += 1
        return True

    def release(self, keys: Sequence[int], private: int, keep: int, output_keys: Sequence[int] = ()) -> None:
        """Give back what `acquire` took. The first `keep` of `keys` were computed and stay cached while there
        is room.

        `output_keys` are the keys of full blocks behind the prompt that this request filled with its output;
        they turn from private into idle blocks, at most `private` of them.
        """
        held, idle = self._held, self._idle
        self._private -= private
        for key in reversed(output_keys[:private]):
            if key not in held:
                idle[key] = None
                idle.move_to_end(key)
        for index in range(len(keys) - 1, -1, -1):
            key = keys[index]
            count = held[key]
            if count > 1:
                held[key] = count - 1
                continue
            del held[key]
            if index < keep:
                idle[key] = None

    def clear(self) -> bool:
        """Forget every block, as vLLM's `reset_prefix_cache`: only while no request holds one, else False."""
        if self.in_use:
            return False
        self._idle.clear()
        return True
