"""Long work in the event loop, a little at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

TURN_S = 0.001
"""Seconds of work after which requests get their turn: about what a pick adds to one anyway."""

T = TypeVar("T")


async def in_turns(items: Iterable[T], seconds: float = TURN_S) -> AsyncIterator[T]:
    """The items, giving way to everything else that is ready after each `seconds` of work on them."""
    end = time.perf_counter() + seconds
    for item in items:
        yield item
        if time.perf_counter() >= end:
            await asyncio.sleep(0)
            end = time.perf_counter() + seconds
