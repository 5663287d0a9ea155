"""The last prompts that were sent somewhere, kept whole for a replica that starts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from extproc.prefix import BlockKeys

REMEMBERED_PICKS = 2_000
"""Prompts at most."""
REMEMBERED_KEYS = 100_000
"""Block keys at most, about 100 bytes each with where they end: 10 MB. Prompts of 8 KB have 40."""


class Latest:
    """The last prompts and their endpoints."""

    def __init__(self) -> None:
        self._picks: deque[tuple[BlockKeys, str]] = deque()
        self._keys = 0

    def add(self, keys: BlockKeys, address: str) -> None:
        """`address` was sent this prompt just now."""
        self._picks.append((keys, address))
        self._keys += len(keys.keys)
        while self._keys > REMEMBERED_KEYS or len(self._picks) > REMEMBERED_PICKS:
            self._keys -= len(self._picks.popleft()[0].keys)

    def __iter__(self) -> Iterator[tuple[BlockKeys, str]]:
        """The latest first."""
        return reversed(self._picks)
