"""Requests without a pause, and what became of each."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.envoy.client import Body, BrokenError, Client
from tests.envoy.conftest import Stack
from tests.envoy.gateway import WHY
from tests.envoy.process import eventually
from tests.envoy.traffic import CHAT, ask, chat, in_parallel, text


@dataclass(slots=True)
class Outcome:
    """What became of one streamed request."""

    status: int = 0
    engine: str = ""
    chunks: int = 0
    complete: bool = False
    why: str = ""
    """Why Envoy answered by itself."""
    ended: float = field(default=float("inf"))

    @property
    def served(self) -> bool:
        return self.status == 200 and self.complete

    @property
    def begun(self) -> bool:
        """Whether an engine had begun to reply. Envoy tries no other then, also where the head of the reply
        was still with it: with the router, say, which is shown it."""
        return bool(self.engine) or self.why.startswith("upstream_reset_after_response_started")


async def stream(gateway: Client, body: bytes, outcome: Outcome) -> Outcome:
    """Send a streamed request and write down how far it came."""
    try:
        async with gateway.open("POST", CHAT, body, {"content-type": "application/json"}) as response:
            outcome.status = response.status
            outcome.engine = response.headers.get("x-simulated-engine", "")
            outcome.why = response.headers.get(WHY, "")
            tail = b""
            async for chunk in response.chunks():
                outcome.chunks += 1
                tail = (tail + chunk)[-200:]
            outcome.complete = tail.endswith(b"data: [DONE]\n\n")
    except BrokenError:
        pass
    outcome.ended = asyncio.get_running_loop().time()
    return outcome


def prompt(seed: int, tokens: int = 20) -> bytes:
    return chat(text(seed, 2000), stream=True, max_tokens=tokens, ignore_eos=True)


@asynccontextmanager
async def load(
    gateway: Client, connections: int, tokens: int = 20, pause: float = 0.0
) -> AsyncIterator[list[Outcome]]:
    """Streamed requests while the block runs, on each connection one after the other with a pause in seconds;
    those begun are seen through to their end."""
    outcomes: list[Outcome] = []
    seeds = iter(range(1_000_000))
    stopping = False

    async def worker() -> None:
        while not stopping:
            outcome = Outcome()
            outcomes.append(outcome)
            await stream(gateway, prompt(next(seeds), tokens), outcome)
            await asyncio.sleep(pause)

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


async def leave_early(gateway: Client, requests: int, make: Callable[[int], bytes] = prompt) -> None:
    """Requests whose clients go at a random moment: while they send, wait, or read."""
    draw = random.Random(1)

    async def leave(seed: int) -> None:
        body = make(seed)
        slowly = [body[at : at + 500] for at in range(0, len(body), 500)]
        sent: Body = body if draw.random() < 0.5 else slowly
        with contextlib.suppress(TimeoutError, BrokenError):
            async with (
                asyncio.timeout(draw.uniform(0, 0.15)),
                gateway.open("POST", CHAT, sent) as response,
            ):
                await response.read()

    await in_parallel(range(requests), 40, leave)


async def all_counts_are_back_to_zero(stack: Stack) -> None:
    async def zero() -> bool:
        counts = [
            count
            for router in stack.routers
            for count in (
                *(await router.samples("extproc_in_flight_requests")).values(),
                await router.metric("extproc_streams"),
            )
        ]
        assert min(counts) >= 0
        return max(counts) == 0

    await eventually(zero, "no request is in flight by the router's count")
    await eventually(
        lambda: not any(engine.engine.running for engine in stack.engines),
        "no request is in flight on the engines",
    )


async def restart_routers(stack: Stack, gateway: Client, times: int) -> None:
    """Kill one router after the other and start it again while requests come. None may fail: Envoy asks
    another, and fails open where there is none."""
    async with load(gateway, 16) as outcomes:
        for turn in range(times):
            router = stack.routers[turn % len(stack.routers)]
            await more(outcomes, 60)
            router.kill()
            await more(outcomes, 60)
            await router.start()
        await more(outcomes, 60)
    assert failed(outcomes) == []
    await all_counts_are_back_to_zero(stack)


async def restart_engines(stack: Stack, gateway: Client, times: int) -> None:
    """Stop one engine after the other and start it again while requests come. Only replies that it had begun
    may be cut, and it must be used again."""
    async with load(gateway, 16) as outcomes:
        for turn in range(times):
            engine = stack.engines[turn % len(stack.engines)]
            await more(outcomes, 20)
            await engine.stop()
            await more(outcomes, 20)
            await engine.start()
            back_at = len(outcomes)

            def used(name: str = engine.name, since: int = back_at) -> bool:
                return any(outcome.engine == name for outcome in outcomes[since:])

            await eventually(used, f"{engine.name} serves again", 30)
    refused = [outcome for outcome in failed(outcomes) if not outcome.begun]
    assert not refused, f"{len(refused)} of {len(outcomes)} were not served: {refused[:5]}"
    await all_counts_are_back_to_zero(stack)


async def empty_and_refill(stack: Stack, gateway: Client, file: Path, times: int) -> None:
    """Take every endpoint from the list and give them back while requests come. What is refused, 503, came
    while the list was empty."""
    addresses = [engine.address for engine in stack.engines]

    async def become(endpoints: list[str]) -> None:
        # Under its name at once, as Kubernetes and careful scripts do it.
        new = file.with_suffix(".new")
        new.write_text(yaml.safe_dump(endpoints))
        new.replace(file)

        async def known() -> bool:
            known = {endpoint for endpoint, _ in await stack.router.samples("extproc_endpoint_suspect")}
            return known == set(endpoints)

        await eventually(known, f"the router knows {len(endpoints)} endpoints")

    loop = asyncio.get_running_loop()
    empty: list[tuple[float, float]] = []
    await become(addresses)
    async with load(gateway, 16, pause=0.01) as outcomes:
        for _ in range(times):
            await more(outcomes, 40)
            began = loop.time()
            await become([])
            await more(outcomes, 40)
            await become(addresses)
            empty.append((began, loop.time()))
        await more(outcomes, 40)
    refused = [outcome for outcome in outcomes if outcome.status == 503]
    assert failed(outcomes) == refused
    assert refused
    assert all(any(start <= outcome.ended <= end + 0.5 for start, end in empty) for outcome in refused)
    await all_counts_are_back_to_zero(stack)


async def reload_again_and_again(stack: Stack, gateway: Client, times: int) -> None:
    """Change the configuration while requests come, every second time to one that cannot be used."""
    before = stack.router.config.read_text()
    changes = [
        before.replace("name: llm", "concurrencyThreshold: 4\n  name: llm"),
        "pools: 5",
        before.replace("name: llm", "strategy: LEAST_OUTSTANDING_REQUESTS\n  name: llm"),
        before.replace("name: llm", "nmae: llm"),
        before.replace("name: llm", "strategy: RANDOM\n  name: llm"),
        before,
    ]
    assert len(set(changes)) == len(changes)
    async with load(gateway, 16) as outcomes:
        for turn in range(times):
            seen = await stack.router.metric("extproc_config_reloads_total")
            stack.router.config.write_text(changes[turn % len(changes)])

            async def looked(seen: float = seen) -> bool:
                return await stack.router.metric("extproc_config_reloads_total") > seen

            await eventually(looked, "the change is seen", 20)
            await more(outcomes, 20)
    assert failed(outcomes) == []
    await all_counts_are_back_to_zero(stack)


async def many_names(gateway: Client, count: int, first: int = 0) -> None:
    """Requests that each name a model, a path, an API and more of their own."""

    async def one(number: int) -> None:
        body = chat(f"prompt {number}", model=f"model-{number}", cache_salt=f"salt-{number}")
        paths = (CHAT, f"/v{number}/chat/completions", f"/api-{number}", f"/models/m-{number}/generate")
        headers = {
            "content-type": f"application/x-{number}",
            "content-encoding": f"enc-{number}" if number % 5 == 0 else "identity",
            "x-warmroute-pool": f"pool-{number}",
        }
        await ask(gateway, body, paths[number % len(paths)], headers=headers)

    await in_parallel(range(first, first + count), 16, one)
