"""What a trace is made of: requests with the keys that a router sees and the blocks that an engine sees."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import xxhash

from extproc.prefix import BlockKeys

TOKEN_BYTES = 4
"""Bytes of text per token, about what byte-pair vocabularies average on English text. A router that has no
tokenizer reckons with it."""

_SEED = 0x3C6E_F372_FE94_F82B


class Arrival(NamedTuple):
    """One request of a trace."""

    at: float
    """Seconds since the trace began."""
    keys: BlockKeys
    """What the router makes of it: chained block keys and, in bytes, where each ends."""
    blocks: Sequence[int]
    """What the engine makes of it: chained keys of the prompt's full KV cache blocks."""
    prompt_tokens: int
    output_tokens: int
    """0 if the trace does not say."""
    session: int = 0
    """Same for all turns of a conversation; 0 if the trace does not say."""


class Problem(NamedTuple):
    """A line of a trace that could not be used."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass(slots=True)
class Trace:
    """Requests in order of time, and what a reader of the figures must know about them."""

    name: str
    arrivals: list[Arrival]
    block_tokens: int
    """Tokens of an engine block in `Arrival.blocks`."""
    has_prefixes: bool = True
    """Whether the trace says which prompts begin alike."""
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Every line that was left out."""
    origin: float = 0.0
    """What the clock of the trace's file said, in seconds, when `Arrival.at` was 0."""

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.arrivals[-1].at - self.arrivals[0].at if self.arrivals else 0.0

    def part(self, start: float, end: float) -> Trace:
        """The requests from fraction `start` to `end` of their number, time beginning at 0 again."""
        count = len(self.arrivals)
        chosen, first = from_zero(self.arrivals[round(start * count) : round(end * count)])
        return replace(self, arrivals=chosen, origin=self.origin + first)


def from_zero(arrivals: Sequence[Arrival]) -> tuple[list[Arrival], float]:
    """The requests in order of time, the first at 0, and when that was."""
    found = sorted(arrivals, key=lambda arrival: arrival.at)
    first = found[0].at if found else 0.0
    return [arrival._replace(at=arrival.at - first) for arrival in found] if first else found, first


def cut(keys: BlockKeys, length: int) -> BlockKeys:
    """The whole blocks within the first `length` bytes, or the first block if that is longer already.

    A router with a prefix length cuts the text and has a key at exactly that point; of a trace only the
    blocks are known.
    """
    count = max(1, bisect_right(keys.ends, length))
    return keys if count >= len(keys.keys) else BlockKeys(keys.keys[:count], keys.ends[:count])


def key_of(number: int) -> int:
    """A block key (64 bits) for the number by which a trace names a block."""
    key: int = xxhash.xxh3_64_intdigest(number.to_bytes(16, "little", signed=True), _SEED)
    return key


def engine_blocks(keys: BlockKeys, block_tokens: int) -> list[int]:
    """Engine blocks of a prompt of which only the router's keys are known.

    An engine's block begins alike in two prompts if the router's key that covers its end is equal in both. So
    a shared prefix is taken to end with the last shared router key: at most an eighth too early.
    """
    blocks: list[int] = []
    size = block_tokens * TOKEN_BYTES
    edge = size
    for key, end in zip(keys.keys, keys.ends, strict=True):
        while edge <= end:
            blocks.append(xxhash.xxh3_64_intdigest(len(blocks).to_bytes(8, "little"), key))
            edge += size
    return blocks
