"""Chained block keys of a prompt: equal keys mean equal content up to there.

The content is hashed as one chain with XXH3-64 (https://xxhash.com, fixed seeds, so that every router
computes the same keys):

- a segment's tag: chain = xxh3(tag, seed = chain ^ _TAG). The seed keeps tags apart from data;
- a block of data: chain = xxh3(block, seed = chain);
- a segment's last bytes, fewer than a block: the same as a block, if the segment is closed.

A key is taken after every full block and at the end of every closed segment, so the next turn of a
conversation finds the keys of all turns before it. The end of a segment that was cut gives none: more may
follow there.

Blocks start anew in each segment. A block's size depends only on how many bytes of content precede it: an
eighth of them, rounded down to a power of two, at least 64 and at most 4,096. So equal content has equal
blocks, what is lost at the end of a match is at most an eighth of it, and 400 KB need 150 keys.

The second segment is an exception: it follows the system prompt, which many requests share, and what tells
them apart begins there, often with a few hundred bytes that a question follows in the same message. Its
blocks begin small again and are half of what precedes them within it.

The scope is mixed in when a key is taken: key = chain ^ scope digest. Within one scope that maps chains to
keys one to one. Keys of two scopes agree only if their chains differ by just the difference of the two
digests: one chance in 2^64 for each pair, as for any two hashes; and placement hashes every key again. A
body that names its scope last can be hashed before the scope is known.

Nothing here is cryptographic: who crafts colliding content shares an engine, and nothing else.
"""

from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from extproc.prompt import MAX_SEGMENTS, RAW, TEXT, TOKENS, Prompt

MAX_KEYS = MAX_SEGMENTS
"""Keys per prompt at most; content beyond them (some 4 MB of one text, or 1,024 tiny messages) is not
keyed."""

_SEED = 0x7D1B_93C4_E02F_A685
_TAG = 0xB492_5E0D_3A77_C1F9

# Indexed by the bit length of the count of preceding bytes: 2^(bits - 1) is that count, rounded down.
_BLOCK_SIZES = tuple(min(max(1 << bits >> 4, 64), 4096) for bits in range(65))
_SECOND_SIZES = tuple(min(max(1 << bits >> 2, 64), 4096) for bits in range(65))

_VIEW_FROM = 8192
"""Data from this size is sliced without a copy; below it, copying the small blocks is faster."""

_TOKEN = 8
"""Bytes of a token id."""


class BlockKeys(NamedTuple):
    """Block keys from shallow to deep.

    `keys` are unsigned 64-bit integers; `ends` says for each how many bytes of content it covers.
    `segments` are the numbers of keys after which a closed segment, such as a message, ends.
    """

    keys: list[int]
    ends: list[int]
    segments: Sequence[int] = ()


def block_keys(prompt: Prompt, limit: int | None = None) -> BlockKeys:
    """Return at most MAX_KEYS keys of a prompt's content.

    `limit` is how much is counted from the start: characters of message text, token ids, or bytes of a raw
    body; parts that are none of these (images, tool calls) enter but are not counted. The chain ends where
    `limit` is reached, with a key at exactly that point: prompts that agree so far have the same last key,
    whatever follows. None counts all. Raises ValueError if `limit` is not positive.
    """
    if limit is not None and limit <= 0:
        raise ValueError(f"limit must be positive, not {limit}")
    scope = prompt.scope.digest()
    keys: list[int] = []
    ends: list[int] = []
    segments: list[int] = []
    chain, offset, left = _SEED, 0, limit
    for index, (tag, data, closed) in enumerate(prompt.content):
        if left is not None:
            data, counted = _first(tag, data, left)
            left -= counted
        chain = xxh3_64_intdigest(tag, chain ^ _TAG)
        length = len(data)
        view = data if length < _VIEW_FROM else memoryview(data)
        before, sizes = (0, _SECOND_SIZES) if index == 1 else (offset, _BLOCK_SIZES)
        start = 0
        end = sizes[before.bit_length()]
        while end <= length and len(keys) < MAX_KEYS:
            chain = xxh3_64_intdigest(view[start:end], chain)
            keys.append(chain ^ scope)
            ends.append(offset + end)
            start = end
            end += sizes[(before + end).bit_length()]
        if len(keys) == MAX_KEYS:
            break
        offset += length
        # A segment that ends with a full block has its key already; an empty one has it from its tag.
        if (closed or left == 0) and (start < length or not length):
            if length:
                chain = xxh3_64_intdigest(view[start:], chain)
            keys.append(chain ^ scope)
            ends.append(offset)
        if closed:
            segments.append(len(keys))
        if left == 0:
            break
    return BlockKeys(keys, ends, segments)


def _first(tag: bytes, data: bytes, limit: int) -> tuple[bytes, int]:
    """Return the first `limit` characters, ids or bytes of data, and how many of them there are."""
    if tag.startswith(TEXT):
        head = data[: 4 * limit]  # no character is longer than four bytes
        if head.isascii():
            head = head[:limit]
            return head, len(head)
        text = head.decode(errors="ignore")[:limit]
        return text.encode(), len(text)
    if tag == TOKENS:
        head = data[: _TOKEN * limit]
        return head, len(head) // _TOKEN
    if tag == RAW:
        head = data[:limit]
        return head, len(head)
    return data, 0
