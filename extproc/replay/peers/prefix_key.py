"""The block key that stands for "the first so many bytes of the prompt"."""

from __future__ import annotations

from bisect import bisect_right

from extproc.prefix import BlockKeys


def first_bytes(keys: BlockKeys, length: int) -> int:
    """The key of the longest run of whole blocks within the first `length` bytes; of the first block if that
    is longer already; 0 if there is none.
    """
    if not keys.keys:
        return 0
    return keys.keys[max(0, bisect_right(keys.ends, length) - 1)]
