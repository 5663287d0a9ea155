"""A gateway that goes on without the router, whichever way the router is attached to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from e2e.scenarios.load import Changes, Client, all_served, load, more, pinned
from tests.envoy.process import eventually

Scale = Callable[[int], Awaitable[object]]
"""Has so many replicas of the router, and waits until they are ready and no other is left."""


async def requests_are_served_without_the_router(gateway: Client, scale: Scale) -> None:
    """Take both replicas away under load and bring them back.

    Assert that no request failed, that those in between were served unpinned, and that those before and after
    were pinned.
    """
    changes = Changes()
    async with load(gateway) as outcomes:
        await more(outcomes, 60)
        async with changes.change():
            await scale(0)
            away = len(outcomes)
            await more(outcomes, 60)
            unpinned = [outcome for outcome in outcomes[away:] if not outcome.pin]
            await scale(2)
            back = len(outcomes)
            await eventually(lambda: any(one.pinned for one in outcomes[back:]), "pins are back", 30)
        await more(outcomes, 100)
    all_served(outcomes)
    assert len(unpinned) >= 50
    pinned(changes.outside(outcomes))
