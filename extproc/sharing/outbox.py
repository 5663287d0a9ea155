"""Where picks wait for the next batch: all that the path of a request notices of sharing."""

from __future__ import annotations

from collections import deque

from extproc.picker import Picked

MAX_WAITING_KEYS = 524_288
"""Block keys that may wait: 13,000 prompts of 8 KB, some 50 MB. One process picks a tenth of that in the
second between two batches."""


class Outbox:
    """A queue with a limit; beyond it the oldest picks are dropped, which are worth least."""

    def __init__(self, max_keys: int = MAX_WAITING_KEYS) -> None:
        self._max_keys = max_keys
        self._keys = 0
        self._picks: deque[Picked] = deque()
        self._dropped = 0

    def __len__(self) -> int:
        """Picks that wait."""
        return len(self._picks)

    def tell(self, pick: Picked) -> None:
        """Let one pick wait. Never raises and never waits. A prompt without block keys tells nothing."""
        length = len(pick.keys.keys)
        if length:
            self._picks.append(pick)
            self._keys += length
            while self._keys > self._max_keys:
                self._keys -= len(self._picks.popleft().keys.keys)
                self._dropped += 1

    def drain(self) -> tuple[deque[Picked], int]:
        """What waits, oldest first, and how many picks were dropped; both begin anew."""
        drained = self._picks, self._dropped
        self._picks, self._keys, self._dropped = deque(), 0, 0
        return drained
