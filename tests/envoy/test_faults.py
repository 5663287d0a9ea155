"""Engines, routers and clients that leave at a bad moment."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.envoy_config import Exchange
from extproc.simulation.http import Settings
from extproc.simulation.presets import PRESETS
from tests.envoy.client import Http, client
from tests.envoy.conftest import Stacks
from tests.envoy.load import (
    Outcome,
    all_counts_are_back_to_zero,
    empty_and_refill,
    failed,
    leave_early,
    load,
    more,
    prompt,
    reload_again_and_again,
    restart_engines,
    restart_routers,
    stream,
)
from tests.envoy.process import eventually
from tests.envoy.traffic import ask, chat, text

# Both exchanges and both versions of HTTP, where the fault does not depend on how the two meet.
CROSSED = pytest.mark.parametrize(
    ("exchange", "http"),
    [("two-message", "HTTP/1.1"), ("one-message", "HTTP/2")],
    ids=["two-message-HTTP/1.1", "one-message-HTTP/2"],
)
# A reply of twenty tokens takes a tenth of a second, the first of them a hundredth.
SETTINGS = Settings(speed=2)


@CROSSED
async def test_an_engine_killed_under_load_costs_only_the_replies_it_had_begun(
    stacks: Stacks, exchange: Exchange, http: Http
) -> None:
    # A tenth of a second to the first byte, one prompt after the other: at any moment most wait for it.
    slow = Settings(spec=replace(PRESETS["demo"], prefill_overhead_s=0.1, chunk_tokens=0), speed=1)
    async with stacks(exchange, settings=slow) as stack, client(stack.url, http) as gateway:
        victim = stack.engines[0]
        async with load(gateway, 24) as outcomes:
            await more(outcomes, 40)
            await eventually(lambda: victim.engine.running + victim.engine.waiting >= 4, "it is busy")
            killed_at = asyncio.get_running_loop().time()
            in_flight = victim.engine.running + victim.engine.waiting
            await victim.stop()
            await more(outcomes, 60)

    cut = [
        outcome
        for outcome in outcomes
        if outcome.begun and outcome.engine in (victim.name, "") and outcome.ended >= killed_at
    ]
    # One whose last byte was already on its way when the engine died is whole.
    assert failed(outcomes) == [outcome for outcome in cut if not outcome.complete]
    assert all(outcome.chunks > 0 for outcome in failed(outcomes))
    assert len(cut) < in_flight, "some had no reply yet, and were served elsewhere"


async def test_a_down_endpoint_stops_being_first_choice_within_a_second(
    stacks: Stacks, exchange: Exchange
) -> None:
    async with stacks(exchange, settings=SETTINGS) as stack, client(stack.url, "HTTP/1.1") as gateway:

        async def refused_connections() -> int:
            return await stack.gateway.stat("cluster.engines.upstream_cx_connect_fail")

        await stack.engines[0].stop()
        before = await refused_connections()
        async with load(gateway, 16, tokens=2) as outcomes:
            await more(outcomes, 20)
            await asyncio.sleep(1)
            known = await refused_connections()
            assert known > before
            await asyncio.sleep(2)
            # One try each time a back-off is over: after 1, 2 and 4 seconds.
            assert await refused_connections() - known <= 3

    assert failed(outcomes) == []


async def test_an_endpoint_that_is_back_is_used_again(stacks: Stacks) -> None:
    async with stacks(settings=SETTINGS) as stack, client(stack.url, "HTTP/1.1") as gateway:
        engine = stack.engines[0]
        async with load(gateway, 8, tokens=2) as outcomes:
            await engine.stop()
            await more(outcomes, 50)
            await engine.start()
            back_at = len(outcomes)

            def used() -> bool:
                return any(outcome.engine == engine.name for outcome in outcomes[back_at:])

            await eventually(used, "the engine serves again", 10)


@CROSSED
@pytest.mark.parametrize("routers", [1, 2])
async def test_routers_killed_and_restarted_under_load_fail_no_request(
    stacks: Stacks, exchange: Exchange, http: Http, routers: int
) -> None:
    async with (
        stacks(exchange, routers=routers, settings=SETTINGS) as stack,
        client(stack.url, http) as gateway,
    ):
        await restart_routers(stack, gateway, times=2)


async def test_engines_restarted_under_load_cost_only_the_replies_they_had_begun(stacks: Stacks) -> None:
    async with stacks(settings=SETTINGS) as stack, client(stack.url, "HTTP/1.1") as gateway:
        await restart_engines(stack, gateway, times=4)


async def test_an_endpoint_list_emptied_and_refilled_under_load_refuses_only_while_it_is_empty(
    stacks: Stacks, tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text("[127.0.0.1:1]\n")
    async with (
        stacks(settings=SETTINGS, pool={"endpoints": {"file": str(file)}}) as stack,
        client(stack.url, "HTTP/1.1") as gateway,
    ):
        await empty_and_refill(stack, gateway, file, times=3)


async def test_a_configuration_changed_again_and_again_under_load_fails_no_request(stacks: Stacks) -> None:
    async with stacks(settings=SETTINGS) as stack, client(stack.url, "HTTP/1.1") as gateway:
        await reload_again_and_again(stack, gateway, times=8)


@CROSSED
async def test_a_drained_router_lets_its_requests_finish_though_envoy_fails_closed(
    stacks: Stacks, exchange: Exchange, http: Http
) -> None:
    async with (
        stacks(exchange, settings=SETTINGS, fail_closed=True) as stack,
        client(stack.url, http) as gateway,
    ):
        outcomes = [Outcome() for _ in range(20)]
        streams = [
            asyncio.create_task(stream(gateway, prompt(seed, tokens=1000), outcome))
            for seed, outcome in enumerate(outcomes)
        ]
        await eventually(lambda: all(outcome.chunks for outcome in outcomes), "every reply has begun")
        stack.router.drain()
        process = stack.router.process
        assert process is not None
        assert await process.exit_code(10) == 0
        assert any(outcome.ended == float("inf") for outcome in outcomes), "replies outlast the router"
        await asyncio.gather(*streams)

    assert failed(outcomes) == []


@CROSSED
async def test_routers_drained_one_after_the_other_fail_no_request_though_envoy_fails_closed(
    stacks: Stacks, exchange: Exchange, http: Http
) -> None:
    async with (
        stacks(exchange, routers=2, settings=SETTINGS, fail_closed=True) as stack,
        client(stack.url, http) as gateway,
        load(gateway, 16) as outcomes,
    ):
        for router in stack.routers:
            await more(outcomes, 50)
            router.drain()
            assert router.process is not None
            assert await router.process.exit_code(15) == 0
            await more(outcomes, 50)
            await router.start()
            await stack.gateway.sees_routers(2)
        await more(outcomes, 50)

    assert failed(outcomes) == []


@pytest.mark.parametrize("fail_closed", [False, True], ids=["fail-open", "fail-closed"])
async def test_without_a_router_requests_pass_or_are_refused_as_configured(
    stacks: Stacks, exchange: Exchange, fail_closed: bool
) -> None:
    async with stacks(exchange, fail_closed=fail_closed) as stack, client(stack.url, "HTTP/1.1") as gateway:
        stack.router.kill()
        replies = [await ask(gateway, chat(text(seed, 100))) for seed in range(20)]
    assert {reply.status for reply in replies} == ({500} if fail_closed else {200})


@CROSSED
async def test_two_thousand_clients_that_leave_leave_no_count_behind(
    stacks: Stacks, exchange: Exchange, http: Http
) -> None:
    async with stacks(exchange, settings=SETTINGS) as stack, client(stack.url, http) as gateway:
        await leave_early(gateway, 2000)
        assert await stack.router.metric("extproc_requests_total") > 50
        await all_counts_are_back_to_zero(stack)
