"""Engines that come, go and die while requests come: none is lost, and prefixes stay where they can."""

from __future__ import annotations

import asyncio

from e2e.scenarios import stack
from e2e.scenarios.load import Changes, Client, all_served, hit_rate, load, more, pinned
from tests.envoy.process import eventually


async def test_three_engines_become_five_and_then_two_under_load(gateway: Client) -> None:
    changes = Changes()
    async with load(gateway) as outcomes:
        await more(outcomes, 100)
        async with changes.change():
            await stack.scale(5)
        at_five = len(outcomes)
        await eventually(
            lambda: len({outcome.engine for outcome in outcomes[at_five:]}) == 5, "each of five serves", 90
        )
        await more(outcomes, 100)
        async with changes.change():
            await stack.scale(2)
        at_two = asyncio.get_running_loop().time()
        await more(outcomes, 150)
    all_served(outcomes)
    assert len({outcome.engine for outcome in outcomes if outcome.begun > at_two}) == 2
    pinned(changes.outside(outcomes))
    # Of eight turns the first finds nothing.
    assert hit_rate(outcomes[at_five:]) > 0.6


async def test_a_rolling_restart_of_the_engines_loses_no_request(gateway: Client) -> None:
    before = {pod["status"]["podIP"] for pod in await stack.pods(stack.ENGINES)}
    changes = Changes()
    async with load(gateway) as outcomes:
        await more(outcomes, 60)
        async with changes.change():
            await stack.kubectl("rollout", "restart", "deployment/llm", f"--namespace={stack.ENGINES}")
            await stack.rolled_out(stack.ENGINES, "llm")
        await more(outcomes, 100)
    after = {pod["status"]["podIP"] for pod in await stack.pods(stack.ENGINES)}
    assert not after & before
    all_served(outcomes)
    pinned(changes.outside(outcomes))


async def test_a_drained_node_gives_its_engines_to_the_others_and_no_request_is_lost(
    gateway: Client,
) -> None:
    changes = Changes()
    node = (await stack.pods(stack.ENGINES))[0]["spec"]["nodeName"]
    try:
        async with load(gateway) as outcomes:
            await more(outcomes, 60)
            async with changes.change():
                await stack.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
                await stack.rolled_out(stack.ENGINES, "llm")
            await more(outcomes, 100)
        left = await stack.pods(stack.ENGINES)
    finally:
        await stack.kubectl("uncordon", node)
    assert node not in {pod["spec"]["nodeName"] for pod in left}
    all_served(outcomes)
    pinned(changes.outside(outcomes))


async def test_an_engine_deleted_without_grace_costs_only_the_replies_that_it_had_begun(
    gateway: Client,
) -> None:
    changes = Changes()
    async with load(gateway) as outcomes:
        await more(outcomes, 60)
        victim = (await stack.pods(stack.ENGINES))[0]
        async with changes.change():
            killed = asyncio.get_running_loop().time()
            await stack.kubectl(
                *("delete", "pod", victim["metadata"]["name"], f"--namespace={stack.ENGINES}"),
                *("--grace-period=0", "--force", "--wait=false"),
            )
            await eventually(
                lambda: any(outcome.begun > killed + 2 for outcome in outcomes), "requests go on", 30
            )
            await stack.rolled_out(stack.ENGINES, "llm")
        await more(outcomes, 100)
    # A reply that has begun cannot be begun anew by another engine.
    cut = [outcome for outcome in outcomes if not outcome.served]
    dead = f"{victim['status']['podIP']}:8000"
    assert all(outcome.engine == dead and outcome.begun < killed + 2 for outcome in cut), cut[:5]
    pinned(changes.outside(outcomes))
