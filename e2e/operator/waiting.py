"""Waiting for what the cluster is to become, which is asked now and then: kubectl is a process each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Holds = Callable[[], Awaitable[object]]

LOOK_SECONDS = 0.25
"""Between two looks."""


async def until(holds: Holds, what: str, seconds: float = 120) -> None:
    """Wait until it holds; fail with `what` after `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await holds():
        assert loop.time() < end, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(LOOK_SECONDS)
