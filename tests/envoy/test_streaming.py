"""Replies reach the client as the engine writes them."""

from __future__ import annotations

import asyncio

from extproc.envoy_config import Exchange
from extproc.simulation.http import Settings
from tests.envoy.client import Http, client
from tests.envoy.conftest import Stacks
from tests.envoy.traffic import CHAT, chat, text


async def test_the_first_chunk_comes_long_before_the_last(
    stacks: Stacks, exchange: Exchange, http: Http
) -> None:
    loop = asyncio.get_running_loop()
    body = chat(text(1, 500), stream=True, max_tokens=100, ignore_eos=True)
    async with stacks(exchange, settings=Settings(speed=1)) as stack, client(stack.url, http) as gateway:
        sent = loop.time()
        async with gateway.open("POST", CHAT, body) as response:
            came = [(loop.time() - sent, chunk) async for chunk in response.chunks()]

    assert response.headers["content-type"].startswith("text/event-stream")
    assert b"".join(chunk for _, chunk in came).endswith(b"data: [DONE]\n\n")
    first, last = came[0][0], came[-1][0]
    assert first < last / 2
    assert len(came) >= 20
