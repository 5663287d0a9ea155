"""The block key that stands for "the first so many bytes of the prompt"."""

from __future__ import annotations

from extproc.prefix import BlockKeys
from extproc.replay.arrival import cut


def first_bytes(keys: BlockKeys, length: int) -> int:
    """The key of the longest run of whole blocks within the first `length` bytes; of the first block if that
    is longer already; 0 if there is none.
    """
    return cut(keys, length).keys[-1] if keys.keys else 0
