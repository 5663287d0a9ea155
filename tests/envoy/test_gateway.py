"""What else the generated configuration promises."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson

from extproc.envoy_config import Exchange
from tests.envoy.client import client
from tests.envoy.conftest import Stacks
from tests.envoy.process import eventually
from tests.envoy.traffic import ask, chat, in_parallel, text


async def test_routers_on_unix_sockets_share_the_requests(stacks: Stacks, exchange: Exchange) -> None:
    async with (
        stacks(exchange, routers=3, sockets=True) as stack,
        client(stack.url, "HTTP/1.1") as gateway,
    ):
        prompts = [chat(text(seed, 500)) for seed in range(60)]
        replies = await in_parallel(prompts, 4, lambda prompt: ask(gateway, prompt))
        asked = await asyncio.gather(*(router.metric("extproc_requests_total") for router in stack.routers))
    assert {reply.status for reply in replies} == {200}
    assert sum(asked) == 60
    assert min(asked) > 0


async def test_the_plain_listener_does_not_ask_the_router(stacks: Stacks) -> None:
    async with stacks() as stack, client(stack.gateway.plain_url, "HTTP/1.1") as past_the_router:
        reply = await ask(past_the_router, chat(text(1, 500)))
        assert reply.status == 200
        assert await stack.router.metric("extproc_requests_total") == 0


async def test_the_access_log_tells_the_pin_and_who_served(stacks: Stacks, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    async with stacks(access_log=str(log)) as stack, client(stack.url, "HTTP/1.1") as gateway:
        reply = await ask(gateway, chat(text(1, 500)))
        await eventually(lambda: log.exists() and log.read_bytes().endswith(b"\n"), "the log is written", 20)
    line = orjson.loads(log.read_bytes())
    by_name = {engine.name: engine.address for engine in stack.engines}
    assert line["status"] == 200
    assert line["endpoint"] == by_name[reply.engine]
    first, *others = line["pinned"].split(",")
    assert first == line["endpoint"]
    assert {first, *others} == set(by_name.values())


async def test_the_pool_can_be_chosen_by_metadata(stacks: Stacks) -> None:
    async with (
        stacks(pool={"match": {"metadata": "blue"}}) as stack,
        client(stack.url, "HTTP/1.1") as gateway,
    ):
        await ask(gateway, chat("x"))
        assert ("", "", "unpinned", "") in await stack.router.samples("extproc_requests_total")
    async with (
        stacks(pool={"match": {"metadata": "blue"}}, selects="blue") as stack,
        client(stack.url, "HTTP/1.1") as gateway,
    ):
        await ask(gateway, chat("x"))
        requests = await stack.router.samples("extproc_requests_total")
        assert sum(number for (_cache, pool, *_), number in requests.items() if pool == "llm") == 1
