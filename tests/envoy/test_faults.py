"""Engines, routers and clients that leave at a bad moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from extproc.envoy_config import Exchange
from extproc.simulation.http import Settings
from extproc.simulation.presets import PRESETS
from tests.envoy.client import Body, BrokenError, Client, Http, client
from tests.envoy.conftest import Stack, Stacks
from tests.envoy.process import eventually
from tests.envoy.traffic import CHAT, ask, chat, in_parallel, text

# Both exchanges and both versions of HTTP, where the fault does not depend on how the two meet.
CROSSED = pytest.mark.parametrize(
    ("exchange", "http"),
    [("two-message", "HTTP/1.1"), ("one-message", "HTTP/2")],
    ids=["two-message-HTTP/1.1", "one-message-HTTP/2"],
)
# A reply of twenty tokens takes a tenth of a second, the first of them a hundredth.
SETTINGS = Settings(speed=2)


@dataclass(slots=True)
class Outcome:
    """What became of one streamed request."""

    status: int = 0
    engine: str = ""
    chunks: int = 0
    complete: bool = False
    ended: float = field(default=float("inf"))

    @property
    def served(self) -> bool:
        return self.status == 200 and self.complete


async def stream(gateway: Client, body: bytes, outcome: Outcome) -> Outcome:
    """Send a streamed request and write down how far it came."""
    try:
        async with gateway.open("POST", CHAT, body, {"content-type": "application/json"}) as response:
            outcome.status = response.status
            outcome.engine = response.headers.get("x-simulated-engine", "")
            tail = b""
            async for chunk in response.chunks():
                outcome.chunks += 1
                tail = (tail + chunk)[-20:]
            outcome.complete = tail.endswith(b"data: [DONE]\n\n")
    except BrokenError:
        pass
    outcome.ended = asyncio.get_running_loop().time()
    return outcome


def prompt(seed: int, tokens: int = 20) -> bytes:
    return chat(text(seed, 2000), stream=True, max_tokens=tokens, ignore_eos=True)


@asynccontextmanager
async def load(gateway: Client, connections: int, tokens: int = 20) -> AsyncIterator[list[Outcome]]:
    """Streamed requests without a pause while the block runs; those begun are seen through to their end."""
    outcomes: list[Outcome] = []
    seeds = iter(range(1_000_000))
    stopping = False

    async def worker() -> None:
        while not stopping:
            outcome = Outcome()
            outcomes.append(outcome)
            await stream(gateway, prompt(next(seeds), tokens), outcome)

    workers = [asyncio.create_task(worker()) for _ in range(connections)]
    try:
        yield outcomes
    finally:
        stopping = True
        await asyncio.gather(*workers)


async def more(outcomes: list[Outcome], number: int) -> None:
    """Wait until so many requests more have ended."""

    def ended() -> int:
        return sum(outcome.ended < float("inf") for outcome in outcomes)

    wanted = ended() + number
    await eventually(lambda: ended() >= wanted, f"{number} requests more have ended", 60)


def failed(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if not outcome.served]


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

    cut = [outcome for outcome in outcomes if outcome.engine == victim.name and outcome.ended >= killed_at]
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
async def test_a_router_killed_and_restarted_under_load_fails_no_request(
    stacks: Stacks, exchange: Exchange, http: Http
) -> None:
    async with stacks(exchange, settings=SETTINGS) as stack, client(stack.url, http) as gateway:
        async with load(gateway, 16) as outcomes:
            for _ in range(2):
                await more(outcomes, 60)
                stack.router.kill()
                await more(outcomes, 60)
                await stack.router.start()
            await more(outcomes, 60)
        assert failed(outcomes) == []
        await all_counts_are_back_to_zero(stack)


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
            asyncio.create_task(stream(gateway, prompt(seed, tokens=400), outcome))
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
    draw = random.Random(1)

    async with stacks(exchange, settings=SETTINGS) as stack, client(stack.url, http) as gateway:

        async def leave(seed: int) -> None:
            body = prompt(seed)
            slowly = [body[at : at + 500] for at in range(0, len(body), 500)]
            sent: Body = body if draw.random() < 0.5 else slowly
            with contextlib.suppress(TimeoutError, BrokenError):
                async with (
                    asyncio.timeout(draw.uniform(0, 0.15)),
                    gateway.open("POST", CHAT, sent) as response,
                ):
                    await response.read()

        await in_parallel(range(2000), 40, leave)
        assert await stack.router.metric("extproc_requests_total") > 500
        await all_counts_are_back_to_zero(stack)


async def all_counts_are_back_to_zero(stack: Stack) -> None:
    async def zero() -> bool:
        counts = [
            *(await stack.router.samples("extproc_in_flight_requests")).values(),
            await stack.router.metric("extproc_streams"),
        ]
        assert min(counts) >= 0
        return max(counts) == 0

    await eventually(zero, "no request is in flight by the router's count")
    await eventually(
        lambda: not any(engine.engine.running for engine in stack.engines),
        "no request is in flight on the engines",
    )
