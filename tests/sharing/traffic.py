"""Picks as a router makes them, and a memory that notes what it is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

from extproc.picker import Picked
from extproc.prefix import BlockKeys, block_keys
from extproc.prompt import TEXT, Prompt, Scope, Segment

ENDPOINTS = ("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000")


def prompt_keys(text: str, system: str = "You are a helpful assistant.") -> BlockKeys:
    """The block keys of a chat with one question."""
    content = [Segment(TEXT + b"/system", system.encode(), True), Segment(TEXT, text.encode(), True)]
    return block_keys(Prompt("chat", Scope("model"), content))._replace(segments=())


def pick(keys: BlockKeys | str, address: str = ENDPOINTS[0], at: float = 0.0, pool: str = "llama") -> Picked:
    chain = prompt_keys(keys) if isinstance(keys, str) else keys
    return Picked(pool, chain, address, at, chain.ends[-1] if chain.ends else 0)


class Notes:
    """A pool's memory (`extproc.sharing.memory.Memory`) that keeps all it hears."""

    def __init__(self, addresses: Sequence[str] = ENDPOINTS) -> None:
        self.addresses = tuple(addresses)
        self.learnt: list[tuple[BlockKeys, str]] = []
        self.sent: list[tuple[str, float, float]] = []
        self.broken = False

    def learn(self, keys: BlockKeys, address: str) -> float:
        if self.broken:
            raise RuntimeError("a defect")
        self.learnt.append((keys, address))
        return keys.ends[-1] / 4

    def heard(self, address: str, tokens: float, at: float) -> None:
        self.sent.append((address, tokens, at))

    def known(self, limit: int) -> Iterator[tuple[list[int], list[int], str]]:
        for keys, address in self.learnt[: -limit - 1 : -1]:
            yield keys.keys, keys.ends, address


@st.composite
def chains(draw: Any, longest: int = 40) -> list[BlockKeys]:
    """Chains of block keys, some of which begin with a part of another one."""
    found: list[BlockKeys] = []
    for _ in range(draw(st.integers(1, 8))):
        keys = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=longest))
        steps = draw(st.lists(st.integers(0, 1 << 14), min_size=len(keys), max_size=len(keys)))
        ends = list(accumulate(steps))
        if found and draw(st.booleans()):
            other = draw(st.sampled_from(found))
            shared = draw(st.integers(0, len(other.keys)))
            base = other.ends[shared - 1] if shared else 0
            keys = other.keys[:shared] + keys
            ends = other.ends[:shared] + [base + end for end in ends]
        found.append(BlockKeys(keys, ends))
    return found
