"""What replicas of the router tell each other, whichever way they are attached."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

from e2e.scenarios import stack
from e2e.scenarios.load import Client, Outcome, all_served, pinned
from tests.envoy.process import eventually


def engines_by_conversation(outcomes: Sequence[Outcome]) -> dict[int, set[str]]:
    """The engines that each conversation met."""
    met: dict[int, set[str]] = defaultdict(set)
    for outcome in outcomes:
        met[outcome.conversation].add(outcome.engine)
    return met


async def first_turns(
    gateway: Client,
    numbers: range,
    headers: Mapping[str, str] | None = None,
    namespace: str = stack.ROUTER,
) -> list[Outcome]:
    """The first turn of each conversation, over once each replica of the router knows where all went."""

    async def all_heard() -> float:
        return sum((await stack.of_router("extproc_sharing_heard_picks_total", "", namespace)).values())

    async def nothing_is_under_way() -> bool:
        """Picks are told each second: those of before must not be taken for these."""
        before = await all_heard()
        await asyncio.sleep(2.5)
        return await all_heard() == before

    await eventually(nothing_is_under_way, "what was picked before has been told", 30)
    heard = await all_heard()
    outcomes = [await gateway.ask(number, headers=headers) for number in numbers]

    async def told() -> bool:
        return await all_heard() - heard >= len(numbers)

    await eventually(told, "each replica has heard of the other's picks", 20)
    return outcomes


async def two_replicas_send_a_prefix_to_one_engine(gateway: Client, namespace: str = stack.ROUTER) -> None:
    """Assert it of the turns of ten conversations, after the first of each, and that both replicas picked."""
    before = await stack.of_router("extproc_requests_total", "", namespace)
    numbers = range(200, 210)
    outcomes = await first_turns(gateway, numbers, namespace=namespace)
    outcomes += [await gateway.ask(number, turn) for turn in range(1, 6) for number in numbers]
    all_served(outcomes)
    pinned(outcomes)
    picked = {
        replica: count - before[replica]
        for replica, count in (await stack.of_router("extproc_requests_total", "", namespace)).items()
    }
    assert len(picked) == 2
    assert min(picked.values()) >= 6, f"one replica did nearly all of the work: {picked}"
    met = engines_by_conversation(outcomes)
    assert all(len(engines) == 1 for engines in met.values()), met
